# A pool of pages: the memory of paged caches, which all rows and all forks share.
#
# A page holds `page_size` slots, all heads of them. Whoever holds a page is counted; a page that more than
# one holds is never written to. A page can be *known*: by all tokens of a row up to its end. Two rows that
# begin with the same tokens then hold the same pages.
#
# Letters: D and Dv head sizes, Hkv key/value heads, P pages.
#
# Sources: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
# 2023 (pages, copy on write); Zheng et al., "SGLang", 2023 (prefixes are shared).

"""
    PagePool{T}(num_pages, page_size, num_kv_heads, head_dim, value_dim = head_dim)

`num_pages` >= 0 pages of `page_size` >= 1 slots of element type `T`, for [`PagedCache`](@ref)s;
`PagePool(...)` is one of `Float32`.

Throws `AttentionError`: invalid_config.
"""
mutable struct PagePool{T<:AbstractFloat}
    num_pages::Int
    page_size::Int
    num_kv_heads::Int
    head_dim::Int
    value_dim::Int
    k::Array{T,4}  # (D, page_size, Hkv, P)
    v::Array{T,4}  # (Dv, page_size, Hkv, P)
    holders::Vector{Int}  # (P,), how many rows hold each page
    knowers::Vector{Int}  # (P,), how many of them know it by its tokens
    free::Vector{Int}  # the next one to take is the last
    known::Dict{Vector{Int64},Vector{Int}}  # tokens to pages of different bits, the oldest first

    function PagePool{T}(num_pages, page_size, num_kv_heads, head_dim, value_dim = head_dim) where {T}
        check_head_sizes("page_pool", 0, num_kv_heads, head_dim, value_dim)
        check_whole("page_pool", "num_pages", num_pages, 0)
        check_whole("page_pool", "page_size", page_size, 1)
        check_numbers("page_pool", "num_pages", num_pages, page_size, num_kv_heads, max(head_dim, value_dim))
        k = empty_slots(T, head_dim, num_kv_heads, num_pages, page_size)
        v = empty_slots(T, value_dim, num_kv_heads, num_pages, page_size)
        counts, free = (zeros(Int, num_pages), zeros(Int, num_pages)), collect(Int(num_pages):-1:1)
        known = Dict{Vector{Int64},Vector{Int}}()
        return new{T}(num_pages, page_size, num_kv_heads, head_dim, value_dim, k, v, counts..., free, known)
    end
end

PagePool(sizes...) = PagePool{Float32}(sizes...)

Base.show(io::IO, pool::PagePool) =
    print(io, typeof(pool), "(", length(pool.free), " of ", pool.num_pages, " pages free)")

# 1. take: a free page, whose old content nobody reads: every slot is written before it counts
function take_page!(pool::PagePool)
    page = pop!(pool.free)
    pool.holders[page] = 1
    return page
end

# 2. share: one holder more; or, of two pages with the same tokens and the same bits, the older one for both
function hold_page!(pool::PagePool, page::Int, is_known::Bool)
    pool.holders[page] += 1
    pool.knowers[page] += is_known
    return page
end

function known_page!(pool::PagePool, page::Int, tokens::Vector{Int64})
    pages = get!(pool.known, tokens, Int[])
    for older in pages
        same_bits(pool, older, page) || continue
        release_page!(pool, page, nothing)
        return hold_page!(pool, older, true)
    end
    push!(pages, page)
    pool.knowers[page] = 1
    return page
end

same_bits(pool::PagePool, a::Int, b::Int) =
    all(x -> all(view(x, :, :, :, a) .=== view(x, :, :, :, b)), (pool.k, pool.v))

# 3. copy on write: the holder's own page, which is a copy when others hold it too
function own_page!(pool::PagePool, page::Int)
    pool.holders[page] == 1 && return page
    copied = take_page!(pool)
    pool.k[:, :, :, copied] = view(pool.k, :, :, :, page)  # (D, page_size, Hkv)
    pool.v[:, :, :, copied] = view(pool.v, :, :, :, page)  # (Dv, page_size, Hkv)
    release_page!(pool, page, nothing)
    return copied
end

# 4. free: the last holder gives it back
function release_page!(pool::PagePool, page::Int, tokens)
    tokens === nothing || unknow_page!(pool, page, tokens)
    pool.holders[page] -= 1
    pool.holders[page] == 0 && push!(pool.free, page)
    return nothing
end

# One fewer that knows a page by its tokens; without any, it is no longer found by them.
function unknow_page!(pool::PagePool, page::Int, tokens::Vector{Int64})
    pool.knowers[page] -= 1
    pool.knowers[page] > 0 && return nothing
    pages = filter!(!=(page), pool.known[tokens])
    isempty(pages) && delete!(pool.known, tokens)
    return nothing
end
