# Which slots of a row stay when it may hold no more than a budget.
#
#     WindowPolicy   the first ones and the latest
#     HeavyHitters   those that were given most weight since they came
#     SnapKV         those that some queries, mostly the last ones of a prompt, give most weight
#     KeyNorm        those with the shortest keys, which models tend to look at most
#
# A policy is a score for every slot. The first `sinks` and the last `recent` slots stay in any case, and of
# those between them the ones with the highest scores. Of equal scores the lowest position stays; NaN is below
# every number.
#
# Letters: B batch, Hkv key/value heads, Hq query heads, W queries, L slots of the longest row, n slots of a
# row, C of them between sinks and recent, D head size.
#
# Sources: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, section 3.2
# (window); Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
# Models", 2023, section 4; Li et al., "SnapKV: LLM Knows What You Are Looking for Before Generation", 2024,
# section 4; Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression", 2024,
# section 3.

"""
    WindowPolicy(; budget, sinks = 0)

The first `sinks` slots stay, and the last `budget - sinks`. For [`evict!`](@ref).

`budget` >= sinks, or 0, which empties a row: how many slots of a row stay; of a [`PerHeadCache`](@ref) also a
list, with one for each key/value head.
"""
Base.@kwdef struct WindowPolicy
    # Any value fits, so that a wrong one is named by the call it is given to.
    budget
    sinks = 0
end

"""
    HeavyHitters(; budget, sinks = 0, recent = 0)

The first `sinks` and the last `recent` slots stay, and those that were given most weight since they were
appended, in a cache that tracks. For [`evict!`](@ref). `budget` >= sinks + recent: as for
[`WindowPolicy`](@ref).
"""
Base.@kwdef struct HeavyHitters
    budget
    sinks = 0
    recent = 0
end

"""
    SnapKV(; budget, q, sinks = 0, recent = 0, scale = nothing, pool = 1)

The first `sinks` and the last `recent` slots stay, and those that some queries give most weight, with their
neighbours. For [`evict!`](@ref). `budget`: as for [`HeavyHitters`](@ref).

- `q`: `(D, W, Hq, B)`, W >= 1; the last one stands on the last position of its row, and none sees what comes
  after it. `scale`: as for [`sdpa`](@ref)
- `pool`: odd; a slot has the highest score of so many around it
"""
Base.@kwdef struct SnapKV
    budget
    q
    sinks = 0
    recent = 0
    scale = nothing
    pool = 1
end

"""
    KeyNorm(; budget, sinks = 0, recent = 0)

The first `sinks` and the last `recent` slots stay, and those whose keys have the smallest sum of squares. For
[`evict!`](@ref). `budget`: as for [`HeavyHitters`](@ref).
"""
Base.@kwdef struct KeyNorm
    budget
    sinks = 0
    recent = 0
end

"""
How [`evict!`](@ref) chooses: [`WindowPolicy`](@ref), [`HeavyHitters`](@ref), [`SnapKV`](@ref) or
[`KeyNorm`](@ref).
"""
const Policy = Union{WindowPolicy,HeavyHitters,SnapKV,KeyNorm}

recent_of(policy::Policy) = policy.recent
recent_of(::WindowPolicy) = 0
pool_of(::Policy) = 1
pool_of(policy::SnapKV) = policy.pool

# 1. score: of each head, added up over the heads from the first to the last; beyond a row it means nothing
slot_scores(policy::WindowPolicy, cache)::Matrix{Float64} = position_table(cache.rows)  # (L, B)
slot_scores(policy::HeavyHitters, cache) = over_heads(tracked(cache))  # (L, B)
slot_scores(policy::SnapKV, cache) = over_heads(given(cache, policy.q, policy.scale))  # (L, B)
slot_scores(policy::KeyNorm, cache) = over_heads(key_scores(read(cache).k))  # (L, B)

# Minus the sum of the squares of each key, from the first channel to the last: (D, L, Hkv, B) to (L, Hkv, B).
# A number is multiplied and added in two roundings, so that it is the same bits everywhere.
function key_scores(k)
    D, L, Hkv, B = size(k)
    scores = zeros(L, Hkv, B)
    for b in 1:B, h in 1:Hkv, j in 1:L
        total = 0.0
        for d in 1:D
            x = Float64(k[d, j, h, b])
            square = x * x
            total += square
        end
        scores[j, h, b] = -total
    end
    return scores
end

# (L, Hkv, B) to (L, B).
function over_heads(scores::Array{Float64,3})
    total = zeros(size(scores, 1), size(scores, 3))
    for h in 1:size(scores, 2)
        total .+= view(scores, :, h, :)
    end
    return total
end

# Which slots of a row with these scores (n,) stay, in their order. Where n is beyond the budget, that is 0 or
# at least sinks + recent.
function slots_that_stay(scores, budget::Int, sinks::Int, recent::Int, pool::Int)
    n = length(scores)
    n <= budget && return collect(1:n)
    budget == 0 && return Int[]

    # 2. pool: the highest score of the neighbours that compete, NaN below every number
    between = scores[sinks+1:n-recent]  # (C,)
    C, reach = length(between), min(pool ÷ 2, n)
    pooled = [reduce(higher, view(between, max(i - reach, 1):min(i + reach, C))) for i in 1:C]  # (C,)

    # 3. protect: the first and the last do not compete
    stays = [1:sinks; n-recent+1:n]

    # 4. rank: the highest first, equal ones as they stand, NaN at the end
    ranked = sort(1:C; lt = (i, j) -> is_above(pooled[i], pooled[j]), alg = MergeSort)  # (C,)

    # 5. keep: as many as the budget leaves
    return sort!([stays; sinks .+ ranked[1:budget-sinks-recent]])
end

is_above(a::Float64, b::Float64) = a > b || (isnan(b) && !isnan(a))
higher(a::Float64, b::Float64) = is_above(b, a) ? b : a
