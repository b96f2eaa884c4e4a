# The kinds of caches that a script can ask for: what each takes from the config, and which steps it knows.

const EVERY_CACHE = ["append", "attend", "read", "reorder", "reset", "fork", "drop", "stats", "save", "load"]
const GROWING_CACHE = [EVERY_CACHE; "append_attend"; "truncate"]
const EDITED_CACHE = [GROWING_CACHE; "evict"; "shift"]

const STEPS = Dict(
    "contiguous" => EDITED_CACHE,
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
    kind in ("contiguous", "quantised") && flag(config, "track") && throw(NotOffered("track"))
    rope = object_of(rope_of, optional(config, "rope"))
    if kind == "rotating"
        window, keep = required(config, "window"), either(config, "keep", 0)
        return RotatingCache{T}(batch, heads...; window = window, keep = keep, rope = rope)
    elseif kind == "paged"
        pool = PagePool{T}(required(config, "num_pages"), required(config, "page_size"), heads...)
        return PagedCache(pool, batch; rope = rope)
    elseif kind == "quantised"
        format, group = required(config, "format"), optional(config, "group")
        as = (format = format, group = group, zero_point = either(config, "zero_point", false))
        return QuantisedCache{T}(batch, heads...; as..., options..., rope = rope)
    end
    return KVCache{T}(batch, heads...; options..., rope = rope)
end

# The names of what an append takes, and of what a read gives.
appended(cache::Cache) = ("k", "v")
appended(cache::LatentCache) = ("latent", "rope_key")
