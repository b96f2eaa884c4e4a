# The contiguous cache whose heads hold slots of their own, so that a policy may keep others in every head.
#
# Heads look at different tokens, and one choice for all of them keeps what no head needs most. A row of Hkv
# heads is Hkv rows of one head each in a contiguous cache, which does all the work.
#
# Letters: B batch, Hkv key/value heads, Hq query heads, G = Hq / Hkv, T new positions, Tq queries, L most
# slots that a head holds, D and Dv head sizes.
#
# Sources: Li et al., "SnapKV: LLM Knows What You Are Looking for Before Generation", 2024, section 4 (a
# choice for each head); Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for
# Efficient LLM Inference", 2024, section 3 (budgets of heads).

"""
    PerHeadCache{T}(batch, num_kv_heads, head_dim, value_dim = head_dim; capacity = nothing, rope = nothing,
        rope_at = nothing, track = false)

A [`Cache`](@ref) like [`KVCache`](@ref), but each key/value head of a row holds slots of its own: lengths
are `(Hkv, B)`, positions `(L, Hkv, B)`, and the budget of a policy may be a list, with one for each head. It
cannot be truncated: the last slots of a row are not the same tokens in every head.

Throws `AttentionError`: invalid_config.
"""
mutable struct PerHeadCache{T} <: Cache{T}
    batch::Int
    num_kv_heads::Int
    head_dim::Int
    value_dim::Int
    rows::KVCache{T}  # a row for each head of each row

    function PerHeadCache{T}(
        batch, num_kv_heads, head_dim, value_dim = head_dim; capacity = nothing, options...
    ) where {T}
        check_head_sizes("per_head_cache", batch, num_kv_heads, head_dim, value_dim)
        check_capacity("per_head_cache", capacity, batch, num_kv_heads, max(head_dim, value_dim))
        num_rows = Int(batch) * Int(num_kv_heads)
        rows = KVCache{T}(num_rows, 1, head_dim, value_dim; capacity = capacity, options...)
        return new{T}(batch, num_kv_heads, head_dim, value_dim, rows)
    end
end

PerHeadCache(sizes...; options...) = PerHeadCache{Float32}(sizes...; options...)

# 1. rows: (..., H, B) as (..., G, Hkv·B), a row for each KV head of a row; G = 1 for keys and values
function in_rows(cache::PerHeadCache, x)
    H, Hkv = size(x, ndims(x) - 1), cache.num_kv_heads
    return reshape(x, size(x)[1:end-2]..., H ÷ Hkv, Hkv * cache.batch)
end

# One number for each row, as one for each of its heads; and (..., Hkv·B), one for each head, as (..., Hkv,
# B).
each_head(::PerHeadCache, n) = n
each_head(cache::PerHeadCache, list::AbstractVector) = repeat(list; inner = cache.num_kv_heads)  # (Hkv·B,)
of_heads(cache::PerHeadCache, x) = reshape(x, size(x)[1:end-1]..., cache.num_kv_heads, cache.batch)

lengths(cache::PerHeadCache) = of_heads(cache, lengths(cache.rows))
held_slots(cache::PerHeadCache) = held_slots(cache.rows)
cache_rope(cache::PerHeadCache) = cache_rope(cache.rows)
held_rope(cache::PerHeadCache) = held_rope(cache.rows)
capacity_of(cache::PerHeadCache) = cache.rows.capacity
tracks(cache::PerHeadCache) = cache.rows.track

# All heads of a row count alike.
function row_counters(cache::PerHeadCache)
    counters = Rows(cache.batch)
    counters.next .= cache.rows.rows.next[1:cache.num_kv_heads:end]
    return counters
end

longest_after(cache::PerHeadCache, counts::Vector{Int}) = longest_after(cache.rows, each_head(cache, counts))

function planned(cache::PerHeadCache, k, v, call::AppendCall)
    counts = check_append("append", cache, k, v, call)
    of_rows = AppendCall(each_head(cache, call.lengths), call.padding, nothing)
    plan = planned(cache.rows, in_rows(cache, k), in_rows(cache, v), of_rows)
    return (counts = counts, of_rows = plan)
end

write!(cache::PerHeadCache, plan) = write!(cache.rows, plan.of_rows)

function attend_held(cache::PerHeadCache, q, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    # 2. attend: in the contiguous cache, the queries of each group to the slots of their own head
    dims = (held_slots(cache), size(q, 2), size(q, 3), cache.batch)  # (L, Tq, Hq, B)
    table(x) = in_rows(cache, with_sizes(x, dims))  # (L, Tq, G, Hkv·B)
    keep = mask.keep === nothing ? nothing : table(mask.keep)
    bias = bias === nothing ? nothing : table(bias)
    mask = Mask(keep, mask.causal, mask.window, nothing, each_head(cache, mask.q_offset))
    steps = attend_held(cache.rows, in_rows(cache, q), mask, bias, scale, softcap)
    return map(x -> joined(cache, x), steps)
end

# 3. join: (..., G, Hkv·B) as (..., Hq, B), the heads of a row side by side again
function joined(cache::PerHeadCache, x)
    G = size(x, ndims(x) - 1)
    return reshape(x, size(x)[1:end-2]..., G * cache.num_kv_heads, cache.batch)
end

# What broadcasts to these sizes, with all of them.
with_sizes(x, dims) = Array{eltype(x)}(undef, dims) .= x

track!(cache::PerHeadCache, weights) = track!(cache.rows, in_rows(cache, weights))

tracked(cache::PerHeadCache) = joined(cache, tracked(cache.rows))

function evict!(cache::PerHeadCache, positions)
    evict!(cache.rows, positions)
    return cache
end

function evict!(cache::PerHeadCache, policy::Policy)
    budgets = check_policy("evict", policy, cache, cache.num_kv_heads)
    keep_chosen!(cache.rows, policy_in_rows(cache, policy), repeat(budgets, cache.batch))
    return cache
end

policy_in_rows(::PerHeadCache, policy::Policy) = policy
policy_in_rows(cache::PerHeadCache, p::SnapKV) =
    SnapKV(p.budget, in_rows(cache, p.q), p.sinks, p.recent, p.scale, p.pool)  # (D, W, G, Hkv·B)

function shift!(cache::PerHeadCache, by, from)
    shift!(cache.rows, by, from)
    return cache
end

truncate!(::PerHeadCache, lengths) =
    reject(:invalid_config, "truncate", "cache", "one whose heads hold the same slots", "a PerHeadCache")

function reset!(cache::PerHeadCache)
    reset!(cache.rows)
    return cache
end

function take_rows!(cache::PerHeadCache, index::Vector{Int})
    Hkv = cache.num_kv_heads
    return take_rows!(cache.rows, [(b - 1) * Hkv + h for b in index for h in 1:Hkv])
end

fork(cache::PerHeadCache) = deepcopy(cache)

function Base.read(cache::PerHeadCache)
    k, v, counts, positions = read(cache.rows)
    at = of_heads(cache, positions)  # (L, Hkv, B)
    return (k = joined(cache, k), v = joined(cache, v), lengths = of_heads(cache, counts), positions = at)
end

function stats(cache::PerHeadCache)
    counts = stats(cache.rows)
    return (positions = of_heads(cache, counts.positions), bytes = counts.bytes)
end
