# The paged cache: each row is a list of pages of a pool, in any order, which rows and forks may share.
#
# The slot of position j is slot j mod page_size of the row's page j div page_size. `attend` copies the
# pages of each row one behind the other and goes on as over a contiguous cache.
#
# Letters: B batch, Hkv key/value heads, T new positions, Tq queries, L longest row, D and Dv head sizes.
#
# Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
# SOSP 2023, section 4.

"""
    PagedCache(pool, batch; rope = nothing, rope_at = nothing)

A [`Cache`](@ref) whose rows lie in a [`PagePool`](@ref). A row takes a page when its last one is full; an
append that needs more pages than are free is refused whole. [`fork`](@ref) and [`reorder!`](@ref) share
pages, until somebody writes to them. `reset!` gives the pages back, also of a cache that is no longer
needed.

Throws `AttentionError`: invalid_config.
"""
mutable struct PagedCache{T} <: Cache{T}
    pool::PagePool{T}
    batch::Int
    rope::Union{Nothing,Rope}
    rope_at::String
    rows::Rows
    pages::Vector{Vector{Int}}  # of each row
    tokens::Vector{Vector{Int64}}  # of each row's first slots, as far as all are known

    function PagedCache(pool::PagePool{T}, batch; rope = nothing, rope_at = nothing) where {T}
        check_head_sizes("paged_cache", batch, head_sizes(pool)..., rope, rope_at)
        lists = ([Int[] for _ in 1:batch], [Int64[] for _ in 1:batch])
        return new{T}(pool, batch, rope, something(rope_at, "append"), Rows(Int(batch)), lists...)
    end
end

head_sizes(cache::PagedCache) = head_sizes(cache.pool)
head_sizes(pool::PagePool) = (pool.num_kv_heads, pool.head_dim, pool.value_dim)

function planned(cache::PagedCache, k, v, call::AppendCall)
    # 1. check: everything, before anything is changed
    counts = check_append("append", cache, k, v, call)
    check_pages("append", pages_needed(cache, counts), length(cache.pool.free))
    return merge(planned_heads(cache, k, v, counts, call), (tokens = call.tokens,))
end

# Pages that are still to be taken when rows get so many slots more: new ones, and copies of those that others
# hold too. The last holder of a page needs no copy.
function pages_needed(cache::PagedCache, counts::Vector{Int})
    needed, holders = 0, Dict{Int,Int}()
    for (b, len) in enumerate(slot_counts(cache.rows))
        needed += cld(len + counts[b], cache.pool.page_size) - length(cache.pages[b])
        writes_to_last = counts[b] > 0 && len % cache.pool.page_size != 0
        writes_to_last || continue
        page = last(cache.pages[b])
        count = get(holders, page, cache.pool.holders[page])
        needed += count > 1
        holders[page] = count - 1
    end
    return needed
end

function write!(cache::PagedCache, plan)
    for b in 1:cache.batch
        # 2. take pages: a copy of the last one when others hold it too, then new ones
        plan.counts[b] == 0 && continue
        take_pages!(cache, b, plan.counts[b])

        # 3. write: slot by slot
        part = counted_part(size(plan.new.k, 2), plan.counts[b], plan.padding)
        for (j, t) in zip(cache.rows.next[b]:cache.rows.next[b]+plan.counts[b]-1, part)
            page, slot = place(cache, b, j)
            cache.pool.k[:, slot, :, page] = view(plan.new.k, :, t, :, b)  # (D, Hkv)
            cache.pool.v[:, slot, :, page] = view(plan.new.v, :, t, :, b)  # (Dv, Hkv)
        end
        known = length(cache.tokens[b]) == cache.rows.next[b] && plan.tokens !== nothing
        known && append!(cache.tokens[b], view(plan.tokens, part, b))
    end
    advance!(cache.rows, plan.counts)
    plan.tokens === nothing || share_prefixes!(cache)
    return nothing
end

function take_pages!(cache::PagedCache, b::Int, count::Int)
    pages, len = cache.pages[b], cache.rows.next[b]
    if len % cache.pool.page_size != 0
        pages[end] = own_page!(cache.pool, pages[end])
    end
    while length(pages) * cache.pool.page_size < len + count
        push!(pages, take_page!(cache.pool))
    end
    return nothing
end

# The page and the slot in it, counted from 1, of a position, counted from 0.
place(cache::PagedCache, b::Int, j::Int) =
    (cache.pages[b][j÷cache.pool.page_size+1], j % cache.pool.page_size + 1)

# 4. share prefixes: of each row the full pages that are known by all tokens up to their end
function share_prefixes!(cache::PagedCache)
    for (pages, tokens) in zip(cache.pages, cache.tokens), n in 1:known_pages(cache, tokens)
        cache.pool.knowers[pages[n]] > 0 && continue
        pages[n] = known_page!(cache.pool, pages[n], prefix(cache, tokens, n))
    end
    return nothing
end

known_pages(cache::PagedCache, tokens::Vector{Int64}) = length(tokens) ÷ cache.pool.page_size
prefix(cache::PagedCache, tokens::Vector{Int64}, n::Int) = tokens[1:n*cache.pool.page_size]

function attend_held(cache::PagedCache, q, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    # 5. attend: over the pages of each row, one behind the other
    held = aligned(cache, mask, size(q, 2))
    q = turned_queries(q, cache.rope, held)  # (D, Tq, Hq, B)
    k, v = widened(in_order(cache, cache.pool.k)), widened(in_order(cache, cache.pool.v))
    k = attended_keys(cache, k, held)  # (D, L, Hkv, B)
    return attention(q, k, v, held, bias, scale, softcap, nothing, nothing)
end

# (n, page_size, Hkv, P) to (n, L, Hkv, B), zero beyond a row's length.
function in_order(cache::PagedCache, x::Array{T,4}) where {T}
    ordered = zeros(T, size(x, 1), longest(cache.rows), size(x, 3), cache.batch)
    for (b, len) in enumerate(slot_counts(cache.rows)), j in 0:len-1
        page, slot = place(cache, b, j)
        ordered[:, j+1, :, b] = view(x, :, slot, :, page)
    end
    return ordered
end

function truncate!(cache::PagedCache, lengths)
    # 6. truncate: pages without a slot of the row go back; one that is cut is no longer known to the row
    check_truncate("truncate", lengths, slot_counts(cache.rows))
    for (b, n) in enumerate(lengths)
        pages, tokens = cache.pages[b], cache.tokens[b]
        for p in length(pages):-1:n÷cache.pool.page_size+1
            known = p <= known_pages(cache, tokens) ? prefix(cache, tokens, p) : nothing
            if p > cld(n, cache.pool.page_size)
                release_page!(cache.pool, pop!(pages), known)
            elseif known !== nothing
                unknow_page!(cache.pool, pages[p], known)
            end
        end
        resize!(tokens, min(length(tokens), n))
    end
    cut!(cache.rows, lengths)
    return cache
end

reset!(cache::PagedCache) = truncate!(cache, zeros(Int, cache.batch))

"""
    fork(cache::PagedCache)

As for every cache; the two share their pages.
"""
function fork(cache::PagedCache)
    # 7. fork: the same pages, each held once more
    rope_at = cache.rope === nothing ? nothing : cache.rope_at
    other = PagedCache(cache.pool, cache.batch; rope = cache.rope, rope_at = rope_at)
    hold_rows!(other, cache, collect(1:cache.batch))
    return other
end

# The rows of another cache, whose pages are held once more.
function hold_rows!(cache::PagedCache, other::PagedCache, index::Vector{Int})
    pages, tokens = [copy(other.pages[b]) for b in index], [copy(other.tokens[b]) for b in index]
    for (list, known) in zip(pages, tokens), (n, page) in enumerate(list)
        hold_page!(cache.pool, page, n <= known_pages(cache, known))
    end
    cache.rows, cache.pages, cache.tokens = reordered(other.rows, index), pages, tokens
    return nothing
end

function take_rows!(cache::PagedCache, index::Vector{Int})
    old = fork(cache)
    reset!(cache)
    hold_rows!(cache, old, index)
    reset!(old)
    return nothing
end

function Base.read(cache::PagedCache)
    k, v = in_order(cache, cache.pool.k), in_order(cache, cache.pool.v)  # (D, L, Hkv, B), (Dv, L, Hkv, B)
    return (k = k, v = v, lengths = slot_counts(cache.rows), positions = position_table(cache.rows))
end

function stats(cache::PagedCache)
    pool = cache.pool
    used = pool.num_pages - length(pool.free)
    slot_bytes = sizeof(eltype(cache)) * pool.num_kv_heads * (pool.head_dim + pool.value_dim)
    pages = [used, count(>(1), pool.holders), length(pool.free)]
    return (positions = slot_counts(cache.rows), bytes = slot_bytes * pool.page_size * used, pages = pages)
end
