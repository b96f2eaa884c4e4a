# The cross-attention cache: the keys and values of a context, written once and asked ever after.
#
# A context is there as a whole before the first query, so that no query is before or after a key.
#
# Letters: B batch, Hkv key/value heads, Hq query heads, Tq queries, L longest row, D and Dv head sizes.
#
# Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.3.

"""
    CrossCache{T}(batch, num_kv_heads, head_dim, value_dim = head_dim)

A [`Cache`](@ref) that takes one append until it is reset, and is asked without causal and window.

Throws `AttentionError`: invalid_config.
"""
mutable struct CrossCache{T} <: SlotCache{T}
    batch::Int
    num_kv_heads::Int
    head_dim::Int
    value_dim::Int
    written::Bool
    k::Array{T,4}  # (D, L, Hkv, B)
    v::Array{T,4}  # (Dv, L, Hkv, B)
    rows::Rows

    function CrossCache{T}(batch, num_kv_heads, head_dim, value_dim = head_dim) where {T}
        check_head_sizes("cross_cache", batch, num_kv_heads, head_dim, value_dim)
        k, v = empty_slots(T, head_dim, num_kv_heads, batch), empty_slots(T, value_dim, num_kv_heads, batch)
        return new{T}(batch, num_kv_heads, head_dim, value_dim, false, k, v, Rows(Int(batch)))
    end
end

CrossCache(sizes...) = CrossCache{Float32}(sizes...)

function planned(cache::CrossCache, k, v, call::AppendCall)
    good = !cache.written
    good || reject(:invalid_config, "append", "cache", "one that is not written yet", "a second append")
    counts = check_append("append", cache, k, v, call)
    return (counts = counts, padding = call.padding, new = (k = k, v = v))
end

function write!(cache::CrossCache, plan)
    # 1. write once: what counts of each row
    make_room!(cache, plan.counts)
    write_new!(cache, plan)  # (D, L, Hkv, B), (Dv, L, Hkv, B)
    advance!(cache.rows, plan.counts)
    cache.written = true
    return nothing
end

function attend_held(cache::CrossCache, q, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    # 2. attend: to all of the context
    L = longest(cache.rows)
    k, v = widened(view(cache.k, :, 1:L, :, :)), widened(view(cache.v, :, 1:L, :, :))
    return attention(q, k, v, aligned(cache, mask, size(q, 2)), bias, scale, softcap, nothing, nothing)
end

# 3. reorder: the context of each row goes with it
function take_rows!(cache::CrossCache, index::Vector{Int})
    return copy_rows!(cache, index)
end

truncate!(::CrossCache, lengths) =
    reject(:invalid_config, "truncate", "cache", "one that is not written once", "a CrossCache")

function reset!(cache::CrossCache)
    cache.written = false
    return forget_all!(cache)
end

Base.read(cache::CrossCache) = read_slots(cache, all_slots(cache.rows))
