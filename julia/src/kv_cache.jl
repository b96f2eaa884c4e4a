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
    KVCache{T}(batch, num_kv_heads, head_dim, value_dim = head_dim; capacity = nothing)

Keys `(D, length, Hkv, B)` and values `(Dv, length, Hkv, B)` of element type `T`; `KVCache(...)` is one of
`Float32`. A cache of a half type holds what it was given, and attends in `Float32`. A call that throws leaves
the cache as it was.

`capacity`: most positions a row may hold; `nothing` = grows by doubling.

`length(cache)` is that of the longest row, `lengths(cache)` those of all rows. `keys(cache)` and
`values(cache)` are views of the arrays held, `append!(cache, k, v)` adds positions, [`attend`](@ref) asks,
[`truncate!`](@ref) and [`reset!`](@ref) forget, `read(cache)` copies.

Throws `AttentionError`: invalid_config.
"""
mutable struct KVCache{T<:AbstractFloat}
    batch::Int
    num_kv_heads::Int
    head_dim::Int
    value_dim::Int
    capacity::Union{Nothing,Int}
    k::Array{T,4}  # (D, room, Hkv, B)
    v::Array{T,4}  # (Dv, room, Hkv, B)
    lengths::Vector{Int64}  # (B,)

    function KVCache{T}(batch, num_kv_heads, head_dim, value_dim = head_dim; capacity = nothing) where {T}
        check_cache_config("kv_cache", batch, num_kv_heads, head_dim, value_dim, capacity)
        room = capacity === nothing ? 0 : capacity
        # `zeros` takes a product that has wrapped around for the size.
        foldl(Base.checked_mul, Int.((sizeof(T), max(head_dim, value_dim), room, num_kv_heads, batch)))
        k = zeros(T, head_dim, room, num_kv_heads, batch)
        v = zeros(T, value_dim, room, num_kv_heads, batch)
        return new{T}(batch, num_kv_heads, head_dim, value_dim, capacity, k, v, zeros(Int64, batch))
    end
end

KVCache(sizes...; capacity = nothing) = KVCache{Float32}(sizes...; capacity = capacity)

Base.eltype(::Type{KVCache{T}}) where {T} = T

Base.show(io::IO, cache::KVCache) =
    print(io, typeof(cache), "(", cache.batch, " rows of lengths ", cache.lengths, ")")

"""
    length(cache)

L, the length of the longest row.
"""
Base.length(cache::KVCache) = reduce(max, cache.lengths; init = 0)

"""
    lengths(cache)

How many positions each row holds: a copy, `(B,)`.
"""
lengths(cache::KVCache) = copy(cache.lengths)

"""
    append!(cache, k, v; lengths = nothing)

Add `k` `(D, T, Hkv, B)` and `v` `(Dv, T, Hkv, B)`, T >= 0, after the last position of each row.

`lengths`: `Int64`, `(B,)`, how many of the T count in each row; `nothing` = all.

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config, capacity_exceeded.
"""
function Base.append!(cache::KVCache, k, v; lengths = nothing)
    # 1. check: everything, before anything is changed
    check_append("append", cache, k, v, lengths)
    counts = per_row(lengths, size(k, 2), cache.batch)  # (B,)
    ends = cache.lengths + counts  # (B,)
    needed = reduce(max, ends; init = 0)
    check_room("append", needed, cache.capacity)

    # 2. grow: at least double, so that n appends copy O(n) positions
    room = size(cache.k, 2)
    if needed > room
        larger_k = grow(cache.k, max(needed, 2 * room))  # (D, room, Hkv, B)
        larger_v = grow(cache.v, max(needed, 2 * room))  # (Dv, room, Hkv, B)
        cache.k, cache.v = larger_k, larger_v
    end

    # 3. write: each row at its own end
    for b in 1:cache.batch
        new = cache.lengths[b] .+ (1:counts[b])
        cache.k[:, new, :, b] = view(k, :, 1:counts[b], :, b)  # (D, count, Hkv)
        cache.v[:, new, :, b] = view(v, :, 1:counts[b], :, b)  # (Dv, count, Hkv)
    end

    # 4. advance: only now do the new positions exist
    cache.lengths = ends
    return cache
end

function grow(x::Array{T,4}, room::Int) where {T}
    n, len, num_heads, batch = size(x)
    larger = zeros(T, n, room, num_heads, batch)
    larger[:, 1:len, :, :] = x
    return larger
end

"""
    attend(cache, q; mask = Mask(), bias = nothing, scale = nothing, softcap = nothing)

Attention of `q` `(D, Tq, Hq, B)` over the positions held: an `Array` `(Dv, Tq, Hq, B)`.

`mask`, `bias`: over the L positions held. `mask.q_offset === nothing` puts the last query on the last
position of its row; `mask.kv_lengths` is the cache's own and must be `nothing`. `scale`, `softcap`: as for
[`sdpa`](@ref).

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function attend(cache::KVCache, q; mask = Mask(), bias = nothing, scale = nothing, softcap = nothing)
    @nospecialize mask bias scale softcap
    return attend_held(cache, q, mask, bias, scale, softcap).output
end

"""
    attend_steps(cache, q; mask, bias, scale, softcap) -> (output, weights, lse, scores, capped, biased)

[`attend`](@ref) with its intermediates, those of [`sdpa_steps`](@ref); same arguments and errors.
"""
function attend_steps(cache::KVCache, q; mask = Mask(), bias = nothing, scale = nothing, softcap = nothing)
    @nospecialize mask bias scale softcap
    return attend_held(cache, q, mask, bias, scale, softcap)
end

function attend_held(cache::KVCache, q, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    check_attend("attend", cache, q, mask, bias, scale, softcap)

    # 5. align: the last query stands on the last position of its row
    q_offset = mask.q_offset === nothing ? cache.lengths .- size(q, 2) : mask.q_offset  # (B,)
    held = Mask(mask.keep, mask.causal, mask.window, cache.lengths, q_offset)

    # 6. attend: over views of what is held
    wide_q, k, v, bias = widened(q), widened(keys(cache)), widened(values(cache)), widened(bias)
    steps = attention(wide_q, k, v, held, bias, scale, softcap, nothing, nothing)
    return narrowed(steps, eltype(cache))
end

"""
    truncate!(cache, lengths)

Forget from the end: row b keeps its first `lengths[b]` positions.

Throws `AttentionError`: shape_mismatch, invalid_config.
"""
function truncate!(cache::KVCache, lengths)
    # 7. truncate: the memory stays, the positions beyond are junk from now on
    check_truncate("truncate", lengths, cache.lengths)
    cache.lengths = collect(Int64, lengths)  # (B,)
    return cache
end

"""
    reset!(cache)

Forget everything; the memory is kept.
"""
function reset!(cache::KVCache)
    # 8. reset: a cache of length 0
    cache.lengths = zeros(Int64, cache.batch)  # (B,)
    return cache
end

"""
    keys(cache), values(cache)

Views `(D, L, Hkv, B)` and `(Dv, L, Hkv, B)`; what lies beyond a row's length is junk.
"""
Base.keys(cache::KVCache) = view(cache.k, :, 1:length(cache), :, :)
Base.values(cache::KVCache) = view(cache.v, :, 1:length(cache), :, :)

"""
    read(cache) -> (k, v, lengths)

Copies of keys `(D, L, Hkv, B)` and values `(Dv, L, Hkv, B)`, zero beyond a row's length, and the lengths
`(B,)`.
"""
function Base.read(cache::KVCache)
    # 9. read: by selection, since junk may be NaN
    k = Array(keys(cache))  # (D, L, Hkv, B)
    v = Array(values(cache))  # (Dv, L, Hkv, B)
    for (b, len) in enumerate(cache.lengths)
        k[:, len+1:end, :, b] .= 0
        v[:, len+1:end, :, b] .= 0
    end
    return k, v, lengths(cache)
end
