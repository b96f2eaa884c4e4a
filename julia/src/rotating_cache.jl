# The rotating cache: only the last W positions, and perhaps the first ones, which are kept for good.
#
# The query at position p sees the key at position j when j <= p and (p - j < W or j < keep). What no query
# from now on can see is forgotten before new tokens come, never after: a chunk of any size attends as it
# would in a full cache with that mask.
#
# Letters: B batch, Hkv key/value heads, T new positions, Tq queries, L slots of the longest row, D and Dv
# head sizes, W window.
#
# Sources: Jiang et al., "Mistral 7B", 2023, section 2 (rolling buffer); Xiao et al., "Efficient Streaming
# Language Models with Attention Sinks", 2023 (the first ones).

"""
    RotatingCache{T}(batch, num_kv_heads, head_dim, value_dim = head_dim; window, keep = 0, rope = nothing,
        rope_at = nothing)

A [`Cache`](@ref) of the last `window` >= 1 positions and of the first `keep`. `lengths(cache)` count all
positions ever appended and not truncated; `read` gives what the next query could see.

Throws `AttentionError`: invalid_config.
"""
mutable struct RotatingCache{T} <: SlotCache{T}
    batch::Int
    num_kv_heads::Int
    head_dim::Int
    value_dim::Int
    window::Int
    keep::Int
    rope::Union{Nothing,Rope}
    rope_at::String
    k::Array{T,4}  # (D, room, Hkv, B)
    v::Array{T,4}  # (Dv, room, Hkv, B)
    rows::Rows

    function RotatingCache{T}(
        batch,
        num_kv_heads,
        head_dim,
        value_dim = head_dim;
        window,
        keep = 0,
        rope = nothing,
        rope_at = nothing
    ) where {T}
        check_head_sizes("rotating_cache", batch, num_kv_heads, head_dim, value_dim, rope, rope_at)
        check_whole("rotating_cache", "window", window, 1)
        check_whole("rotating_cache", "keep", keep, 0)
        k, v = empty_slots(T, head_dim, num_kv_heads, batch), empty_slots(T, value_dim, num_kv_heads, batch)
        rows, at = Rows(Int(batch)), something(rope_at, "append")
        return new{T}(batch, num_kv_heads, head_dim, value_dim, window, keep, rope, at, k, v, rows)
    end
end

RotatingCache(sizes...; options...) = RotatingCache{Float32}(sizes...; options...)

lengths(cache::RotatingCache) = copy(cache.rows.next)

function planned(cache::RotatingCache, k, v, call::AppendCall)
    # 1. check: everything, before anything is changed
    counts = check_append("append", cache, k, v, call)
    return planned_heads(cache, k, v, counts, call)
end

# The slots of row b that a query from its next position on may see.
function seen_slots(cache::RotatingCache, b::Int)
    last_hidden = cache.rows.next[b] - cache.window
    return findall(j -> j < cache.keep || j > last_hidden, cache.rows.positions[b])
end

# The slots that are left of each row when new ones come; a row that gets none keeps all of its own.
surviving(cache::RotatingCache, counts) =
    [counts[b] > 0 ? seen_slots(cache, b) : collect(1:n) for (b, n) in enumerate(slot_counts(cache.rows))]

longest_after(cache::RotatingCache, counts::Vector{Int}) =
    reduce(max, length.(surviving(cache, counts)) .+ counts; init = 0)

function write!(cache::RotatingCache, plan)
    # 2. forget: what no query from now on can see; the rest moves up, O(W) as the attention after it
    slots, room = surviving(cache, plan.counts), longest_after(cache, plan.counts)
    contents!(cache, map(x -> gathered(x, slots, room), contents(cache)))
    cache.rows = picked(cache.rows, slots)

    # 3. write: all that was given, behind what is left
    write_new!(cache, plan)  # (D, room, Hkv, B), (Dv, room, Hkv, B)

    # 4. advance: positions go on counting, whatever was forgotten
    advance!(cache.rows, plan.counts)
    return nothing
end

function attend_held(cache::RotatingCache, q, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    # 5. align: the last query stands on the last position; every query has a window of its own
    held = rotating_mask(cache, aligned(cache, mask, size(q, 2)), size(q, 2))
    q = turned_queries(q, cache.rope, held)  # (D, Tq, Hq, B)

    # 6. attend: over the slots held, in the order of their positions
    L = longest(cache.rows)
    k, v = widened(view(cache.k, :, 1:L, :, :)), widened(view(cache.v, :, 1:L, :, :))
    k = attended_keys(cache, k, held)  # (D, L, Hkv, B)
    return attention(q, k, v, held, bias, scale, softcap, nothing, nothing)
end

# Causal, and within the window or among the first ones.
function rotating_mask(cache::RotatingCache, held::Mask, Tq::Int)
    positions, from = held.kv_positions, row_offsets(held.q_offset, cache.batch)::Vector{Int}
    L, B = size(positions)
    near = Array{Bool}(undef, L, Tq, 1, B)  # (L, Tq, 1, B)
    for b in 1:B, i in 1:Tq, s in 1:L
        j = positions[s, b]
        near[s, i, 1, b] = from[b] + i - 1 - j < cache.window || j < cache.keep
    end
    keep = held.keep === nothing ? near : near .& four_dims(held.keep)
    return Mask(keep, true, held.window, held.kv_lengths, held.q_offset, positions)
end

"""
    truncate!(cache::RotatingCache, lengths)

`lengths` count positions. Row b goes back to its first `lengths[b]`, if all that the next query would see
is still held.
"""
function truncate!(cache::RotatingCache, lengths)
    # 7. truncate: only to where the window before is still whole
    check_truncate("truncate", lengths, cache.rows.next)
    check_window_held("truncate", cache, lengths)
    cache.rows = picked(cache.rows, [findall(<(n), list) for (list, n) in zip(cache.rows.positions, lengths)])
    cache.rows.next .= lengths
    return cache
end

function reset!(cache::RotatingCache)
    # 8. reset: a cache of length 0
    return forget_all!(cache)
end

function Base.read(cache::RotatingCache)
    # 9. read: what the next query could see, which may be less than what is held
    return read_slots(cache, [seen_slots(cache, b) for b in 1:cache.batch])  # (D, L, Hkv, B), (Dv, L, Hkv, B)
end
