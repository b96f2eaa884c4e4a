# The quantised cache: a contiguous cache that holds codes in place of numbers, and attends to what they
# restore.
#
# Each token and head is rounded on its own, so that a cache can grow without another look at what it holds.
#
# Letters: B batch, Hkv key/value heads, T new positions, Tq queries, L longest row, D and Dv head sizes, W
# and Wv numbers that hold their codes.
#
# Source: Hooper et al., "KVQuant", 2024, section 3 (what is lost, and where).

"""
    QuantisedCache{T}(batch, num_kv_heads, head_dim, value_dim = head_dim; format, group = nothing,
        zero_point = false, capacity = nothing, rope = nothing, rope_at = nothing, track = false)

A [`Cache`](@ref) whose keys and values are rounded as [`quantise`](@ref) says; `format`, `group` and
`zero_point` are those of that. Keys that are turned when they come are rounded after that. `T` is the type of
what comes and goes.

[`read_codes`](@ref) gives what is stored, `read` what it restores.

Throws `AttentionError`: invalid_config.
"""
mutable struct QuantisedCache{T} <: SlotCache{T}
    batch::Int
    num_kv_heads::Int
    head_dim::Int
    value_dim::Int
    format::String
    group::Union{Nothing,Int}
    zero_point::Bool
    capacity::Union{Nothing,Int}
    rope::Union{Nothing,Rope}
    rope_at::String
    track::Bool
    k::Codes  # (W, room, Hkv, B), and (groups, room, Hkv, B)
    v::Codes  # (Wv, room, Hkv, B), and (groups, room, Hkv, B)
    rows::Rows

    function QuantisedCache{T}(
        batch,
        num_kv_heads,
        head_dim,
        value_dim = head_dim;
        format,
        group = nothing,
        zero_point = false,
        capacity = nothing,
        rope = nothing,
        rope_at = nothing,
        track = false
    ) where {T}
        check_head_sizes("quantised_cache", batch, num_kv_heads, head_dim, value_dim, rope, rope_at)
        check_flag("quantised_cache", "track", track)
        check_format("quantised_cache", format, group, zero_point)
        check_capacity("quantised_cache", capacity, batch, num_kv_heads, max(head_dim, value_dim))
        empty(channels) =
            code_slots(empty_codes(format, Int(channels), group, zero_point), num_kv_heads, batch, capacity)
        sizes = (batch, num_kv_heads, head_dim, value_dim)
        k, v, at = empty(head_dim), empty(value_dim), something(rope_at, "append")
        rows = Rows(Int(batch), track ? Int(num_kv_heads) : 0)
        return new{T}(sizes..., format, group, zero_point, capacity, rope, at, track, k, v, rows)
    end
end

# No codes, scales and zeros yet, but room for them.
function code_slots(as::Codes, num_kv_heads, batch, capacity)
    @nospecialize num_kv_heads batch capacity
    slots(::Type{C}, n) where {C} = empty_slots(C, n, num_kv_heads, batch, capacity)
    codes = slots(code_type(as), code_width(as))
    return with_arrays(as, codes, slots(Float32, scale_count(as)), slots(Float32, zero_count(as)))
end

QuantisedCache(sizes...; options...) = QuantisedCache{Float32}(sizes...; options...)

arrays(k::Codes, v::Codes) = (
    k_codes = k.codes,
    k_scale = k.scale,
    k_zero = k.zero,
    v_codes = v.codes,
    v_scale = v.scale,
    v_zero = v.zero,
)

contents(cache::QuantisedCache) = arrays(cache.k, cache.v)

function contents!(cache::QuantisedCache, new)
    cache.k = with_arrays(cache.k, new.k_codes, new.k_scale, new.k_zero)
    cache.v = with_arrays(cache.v, new.v_codes, new.v_scale, new.v_zero)
    return nothing
end

function planned(cache::QuantisedCache, k, v, call::AppendCall)
    # 1. check: everything, before anything is changed
    counts = check_append("append", cache, k, v, call)
    check_room("append", longest_after(cache, counts), cache.capacity)

    # 2. quantise: each token and head on its own; what does not count is not looked at
    turned = turned_keys(cache, k, counts, call.padding)
    k_codes = quantised(zero_uncounted(turned, counts, call.padding), cache.k)  # (W, T, Hkv, B)
    v_codes = quantised(zero_uncounted(widened(v), counts, call.padding), cache.v)  # (Wv, T, Hkv, B)
    return (counts = counts, padding = call.padding, new = arrays(k_codes, v_codes))
end

function zero_uncounted(x, counts::Vector{Int}, padding)
    parts = [counted_part(size(x, 2), count, padding) for count in counts]
    kept = zeros(eltype(x), size(x))
    for (b, part) in enumerate(parts)
        kept[:, part, :, b] = view(x, :, part, :, b)
    end
    return kept
end

function write!(cache::QuantisedCache, plan)
    # 3. write: codes, scales and zeros, each row at its own end
    make_room!(cache, plan.counts)
    write_new!(cache, plan)
    advance!(cache.rows, plan.counts)
    return nothing
end

function attend_held(cache::QuantisedCache{T}, q, mask, bias, scale, softcap) where {T}
    @nospecialize mask bias scale softcap
    # 4. restore: in Float32, which for a cache of Float64 is widened
    k, v = map(x -> convert(Array{compute_type(T),4}, x), restored_heads(cache))  # (D, L, Hkv, B), (Dv, …)

    # 5. attend: as over a contiguous cache of these
    return attend_restored(cache, k, v, q, mask, bias, scale, softcap)
end

function attend_restored(cache, k, v, q, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    held = aligned(cache, mask, size(q, 2))
    q = turned_queries(q, cache.rope, held)  # (D, Tq, Hq, B)
    k = attended_keys(cache, k, held)  # (D, L, Hkv, B)
    return attention(q, k, v, held, bias, scale, softcap, nothing, nothing)
end

held_codes(cache::SlotCache) =
    map(x -> gathered(x, all_slots(cache.rows), longest(cache.rows)), contents(cache))

function restored_heads(cache::QuantisedCache)
    held = held_codes(cache)
    k = restored(with_arrays(cache.k, held.k_codes, held.k_scale, held.k_zero))  # (D, L, Hkv, B)
    v = restored(with_arrays(cache.v, held.v_codes, held.v_scale, held.v_zero))  # (Dv, L, Hkv, B)
    return k, v
end

function truncate!(cache::QuantisedCache, lengths)
    # 6. truncate: the memory stays, the slots beyond are junk from now on
    return keep_first!(cache, lengths)
end

reset!(cache::QuantisedCache) = forget_all!(cache)

function Base.read(cache::QuantisedCache{T}) where {T}
    # 7. read: what the codes restore, rounded once to a half type
    k, v = map(x -> narrow(x, T)::Array{T,4}, restored_heads(cache))  # (D, L, Hkv, B), (Dv, L, Hkv, B)
    rows = cache.rows
    return (k = k, v = v, lengths = slot_counts(rows), positions = position_table(rows))
end

"""
    read_codes(cache::QuantisedCache)

Copies of what is stored, zero beyond a row's length, by name: `k_codes` `(W, L, Hkv, B)` and `v_codes`,
and where the format has them `k_scale`, `v_scale`, `k_zero` and `v_zero` `(groups, L, Hkv, B)`.
"""
function read_codes(cache::QuantisedCache)
    held = held_codes(cache)
    names = has_scale(cache.format) ? (:k_codes, :v_codes, :k_scale, :v_scale) : (:k_codes, :v_codes)
    names = cache.zero_point ? (names..., :k_zero, :v_zero) : names
    return NamedTuple{names}(held)
end
