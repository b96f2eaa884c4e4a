# The kinds of caches that a script can ask for: what each takes from the config, and which steps it knows;
# and the policies by which it may evict.

const EVERY_CACHE = ["append", "attend", "read", "reorder", "reset", "fork", "drop", "stats", "save", "load"]
const GROWING_CACHE = [EVERY_CACHE; "append_attend"; "truncate"]
const EDITED_CACHE = [GROWING_CACHE; "evict"; "shift"]

const STEPS = Dict(
    "contiguous" => EDITED_CACHE,
    "per_head" => setdiff(EDITED_CACHE, ["truncate"]),
    "quantised" => EDITED_CACHE,
    "rotating" => GROWING_CACHE,
    "paged" => GROWING_CACHE,
    "latent" => GROWING_CACHE,
    "cross" => EVERY_CACHE,
)

# A new cache of element type T.
function cache_of(::Type{T}, kind::String, config::Dict) where {T}
    options = (capacity = optional(config, "capacity"),)
    if kind == "latent"
        sizes = (required(config, name) for name in ("batch", "latent_dim", "rope_dim"))
        return LatentCache{T}(sizes...; options...)
    end
    head_dim = required(config, "head_dim")
    heads = (required(config, "num_kv_heads"), head_dim, either(config, "value_dim", head_dim))
    batch = required(config, "batch")
    kind == "cross" && return CrossCache{T}(batch, heads...)
    turning = (rope = object_of(rope_of, optional(config, "rope")), rope_at = optional(config, "rope_at"))
    if kind == "rotating"
        window, keep = required(config, "window"), either(config, "keep", 0)
        return RotatingCache{T}(batch, heads...; window = window, keep = keep, turning...)
    elseif kind == "paged"
        pool = PagePool{T}(required(config, "num_pages"), required(config, "page_size"), heads...)
        return PagedCache(pool, batch; turning...)
    end
    options = merge(options, turning, (track = either(config, "track", false),))
    if kind == "quantised"
        format, group = required(config, "format"), optional(config, "group")
        as = (format = format, group = group, zero_point = either(config, "zero_point", false))
        key_groups = optional(config, "key_groups")
        key_groups === nothing && return QuantisedCache{T}(batch, heads...; as..., options...)
        return KiviCache{T}(batch, heads...; as..., key_groups = key_groups, options...)
    end
    kind == "per_head" && return PerHeadCache{T}(batch, heads...; options...)
    return KVCache{T}(batch, heads...; options...)
end

const POLICIES = Dict(
    "window" => WindowPolicy,
    "heavy_hitters" => HeavyHitters,
    "snapkv" => SnapKV,
    "key_norm" => KeyNorm,
)

# A policy that nobody knows is another request; what is none at all is its step's fault.
function check_known(@nospecialize(policy))
    name = policy isa Dict ? get(policy, "type", nothing) : nothing
    name isa String && !haskey(POLICIES, name) && throw(NotOffered("policy.$name"))
    return nothing
end

function policy_of(policy, inputs::Tensors)
    @nospecialize policy
    policy isa Dict || invalid_config("policy: expected an object, got $(repr(policy))")
    kind = required(policy, "type")
    kind isa String || invalid_config("policy: type: expected a name, got $(repr(kind))")
    options = (budget = required(policy, "budget"), sinks = either(policy, "sinks", 0))
    recent = optional(policy, "recent")
    if kind == "window"
        recent === nothing || invalid_config("recent: expected none for a window, got $(repr(recent))")
        return WindowPolicy(; options...)
    end
    options = merge(options, (recent = something(recent, 0),))
    kind == "snapkv" || return POLICIES[kind](; options...)
    q, scale = named_tensor(inputs, required(policy, "q")), optional(policy, "scale")
    return SnapKV(; options..., q = q, scale = scale, pool = either(policy, "pool", 1))
end

# The names of what an append takes, and of what a read gives.
appended(cache::Cache) = ("k", "v")
appended(cache::LatentCache) = ("latent", "rope_key")
