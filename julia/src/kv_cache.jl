# The contiguous KV cache: keys and values of the past, one block of memory, per-row lengths.
#
# Prefill appends many positions, decode one at a time; `attend` gives the same answer either way. Rows of a
# batch have lengths of their own: what lies beyond a row's length is junk and never visible.
#
# Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, D and Dv
# head sizes.
#
# Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 3 (the cache and its
# phases).

"""
    KVCache{T}(batch, num_kv_heads, head_dim, value_dim = head_dim; capacity = nothing, rope = nothing,
        rope_at = nothing, track = false)

Keys `(D, length, Hkv, B)` and values `(Dv, length, Hkv, B)` of element type `T`; `KVCache(...)` is one of
`Float32`.

- `capacity`: most positions a row may hold; `nothing` = grows by doubling
- `rope`, `rope_at`, `track`: see [`Cache`](@ref)

`keys(cache)` and `values(cache)` are views of the arrays held; [`Cache`](@ref) says what else there is.

Throws `AttentionError`: invalid_config.
"""
mutable struct KVCache{T} <: SlotCache{T}
    batch::Int
    num_kv_heads::Int
    head_dim::Int
    value_dim::Int
    capacity::Union{Nothing,Int}
    rope::Union{Nothing,Rope}
    rope_at::String
    track::Bool
    k::Array{T,4}  # (D, room, Hkv, B)
    v::Array{T,4}  # (Dv, room, Hkv, B)
    rows::Rows

    function KVCache{T}(
        batch,
        num_kv_heads,
        head_dim,
        value_dim = head_dim;
        capacity = nothing,
        rope = nothing,
        rope_at = nothing,
        track = false
    ) where {T}
        check_head_sizes("kv_cache", batch, num_kv_heads, head_dim, value_dim, rope, rope_at)
        check_flag("kv_cache", "track", track)
        check_capacity("kv_cache", capacity, batch, num_kv_heads, max(head_dim, value_dim))
        k = empty_slots(T, head_dim, num_kv_heads, batch, capacity)
        v = empty_slots(T, value_dim, num_kv_heads, batch, capacity)
        rows, at = Rows(Int(batch), track ? Int(num_kv_heads) : 0), something(rope_at, "append")
        return new{T}(batch, num_kv_heads, head_dim, value_dim, capacity, rope, at, track, k, v, rows)
    end
end

KVCache(sizes...; options...) = KVCache{Float32}(sizes...; options...)

function planned(cache::KVCache, k, v, call::AppendCall)
    # 1. check: everything, before anything is changed
    counts = check_append("append", cache, k, v, call)
    check_room("append", longest_after(cache, counts), cache.capacity)
    return planned_heads(cache, k, v, counts, call)
end

function write!(cache::KVCache, plan)
    # 2. grow: at least double, so that n appends copy O(n) positions
    make_room!(cache, plan.counts)

    # 3. write: each row at its own end
    write_new!(cache, plan)  # (D, room, Hkv, B), (Dv, room, Hkv, B)

    # 4. advance: only now do the new positions exist
    advance!(cache.rows, plan.counts)
    return nothing
end

function attend_held(cache::KVCache, q, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    # 5. align: the last query stands on the last position of its row
    held = aligned(cache, mask, size(q, 2))
    q = turned_queries(q, cache.rope, held)  # (D, Tq, Hq, B)

    # 6. attend: over views of what is held, or over keys that are turned now
    k, v = widened(keys(cache)), widened(values(cache))  # (D, L, Hkv, B), (Dv, L, Hkv, B)
    k = attended_keys(cache, k, held)
    return attention(q, k, v, held, bias, scale, softcap, nothing, nothing)
end

function truncate!(cache::KVCache, lengths)
    # 7. truncate: the memory stays, the slots beyond are junk from now on
    return keep_first!(cache, lengths)
end

function reset!(cache::KVCache)
    # 8. reset: a cache of length 0; the memory is kept
    return forget_all!(cache)
end

"""
    keys(cache), values(cache)

Views `(D, L, Hkv, B)` and `(Dv, L, Hkv, B)`; what lies beyond a row's length is junk.
"""
Base.keys(cache::KVCache) = view(cache.k, :, 1:longest(cache.rows), :, :)
Base.values(cache::KVCache) = view(cache.v, :, 1:longest(cache.rows), :, :)

"""
    read(cache) -> (k, v, lengths, positions)
    read(cache::LatentCache) -> (latent, rope_key, lengths, positions)

Copies of keys `(D, L, Hkv, B)` and values `(Dv, L, Hkv, B)`, or latents `(R, L, B)` and rotary keys `(Dr, L,
B)`, zero beyond a row's length; the lengths `(B,)`, and the positions `(L, B)`, -1 beyond a row. They are
what is stored: keys rotated where the cache turns them when they come, and restored where it is quantised. A
[`PerHeadCache`](@ref) has lengths `(Hkv, B)` and positions `(L, Hkv, B)`.
"""
function Base.read(cache::KVCache)
    # 9. read: by selection, since junk may be NaN
    return read_slots(cache, all_slots(cache.rows))  # (D, L, Hkv, B), (Dv, L, Hkv, B)
end
