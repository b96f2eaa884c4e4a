# Slots that a caller takes out of a cache, or moves, and the weights that are added up for such a choice: of
# a contiguous or a quantised cache, whose slots nobody shares.
#
# What is left keeps its position, and the next token still comes after the last one that the row ever held.
#
# Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq queries, L slots of the longest
# row, D head size.

const EditableCache = Union{KVCache,QuantisedCache,KiviCache}

"""
    evict!(cache, positions)
    evict!(cache, policy)

Every row of a [`KVCache`](@ref), [`QuantisedCache`](@ref), [`KiviCache`](@ref) or [`PerHeadCache`](@ref)
forgets these positions, where it holds them; or keeps the slots that a [`WindowPolicy`](@ref),
[`HeavyHitters`](@ref), [`SnapKV`](@ref) or [`KeyNorm`](@ref) chooses. A row that holds no more than the
budget keeps all. The choice is one for all heads, by the sum of their scores; in a `PerHeadCache` every head
has its own.

Throws `AttentionError`: invalid_config, shape_mismatch and dtype_mismatch for a policy, unsupported for
another cache.
"""
function evict!(cache::EditableCache, positions)
    check_list("evict", "positions", positions)
    return keep_slots!(cache, [findall(j -> !(j in positions), list) for list in cache.rows.positions])
end

function evict!(cache::EditableCache, policy::Policy)
    budget = first(check_policy("evict", policy, cache, 1))
    return keep_chosen!(cache, policy, fill(budget, cache.batch))
end

# With a budget for each row; everything is checked already.
function keep_chosen!(cache::EditableCache, policy::Policy, budgets::Vector{Int})
    scores = slot_scores(policy, cache)  # (L, B)
    numbers = Int.((policy.sinks, recent_of(policy), pool_of(policy)))
    counts = slot_counts(cache.rows)
    chosen(b) = slots_that_stay(scores[1:counts[b], b], budgets[b], numbers...)
    return keep_slots!(cache, [chosen(b) for b in 1:cache.batch])
end

function keep_slots!(cache::SlotCache, kept)
    room = size(first(contents(cache)), 2)
    contents!(cache, map(x -> gathered(x, kept, room), contents(cache)))
    cache.rows = picked(cache.rows, kept)
    return cache
end

"""
    tracked(cache)

The weights that each slot was given since it was appended, by all queries of all query heads that read its
key/value head, before any dropout: `Float64`, `(L, Hkv, B)`, zero beyond a row's length. Of a cache that was
made with `track = true`: a [`KVCache`](@ref), [`QuantisedCache`](@ref), [`KiviCache`](@ref) or
[`PerHeadCache`](@ref).

Throws `AttentionError`: invalid_config for another.
"""
function tracked(cache::EditableCache)
    check_tracked("tracked", cache)
    return tracked_table(cache.rows, cache.num_kv_heads)
end

function tracked(cache::Cache)
    check_tracked("tracked", cache)
end

tracks(::Cache) = false
tracks(cache::EditableCache) = cache.track

function track!(cache::EditableCache, weights)
    cache.track || return nothing
    sums = per_kv_head(weights, cache.num_kv_heads)  # (L, Hkv, B)
    for (b, lists) in enumerate(cache.rows.tracked), (h, list) in enumerate(lists)
        list .+= view(sums, 1:length(list), h, b)
    end
    return nothing
end

# The weights that causal queries (D, W, Hq, B) would give each slot: (L, Hkv, B). Nothing is tracked.
function given(cache::EditableCache, q, scale)
    steps = attend_held(cache, widened(q), Mask(causal = true), nothing, scale, nothing)
    return per_kv_head(steps.weights, cache.num_kv_heads)
end

# (L, Tq, Hq, B), added up over queries and the query heads of a group: (L, Hkv, B).
function per_kv_head(weights, num_kv_heads::Int)
    L, Tq, Hq, B = size(weights)
    sums = zeros(L, num_kv_heads, B)
    G = Hq ÷ num_kv_heads
    for b in 1:B, h in 1:Hq, i in 1:Tq, j in 1:L
        sums[j, fld1(h, G), b] += weights[j, i, h, b]
    end
    return sums
end

"""
    shift!(cache, by, from)

Every position >= `from` that a row of a [`KVCache`](@ref), [`QuantisedCache`](@ref), [`KiviCache`](@ref) or
[`PerHeadCache`](@ref) holds moves by `by`, and with it the position of the row's next token. A key that is
held turned is turned on by as much. None may fall below 0, onto one that stays, or past it.

Throws `AttentionError`: invalid_config, unsupported for another cache.
"""
function shift!(cache::EditableCache, by, from)
    check_shift("shift", cache.rows, by, from)
    by, from = Int64(by), Int64(from)
    held_rope(cache) === nothing || by == 0 || turn_on!(cache, by, from)
    moved(j) = j >= from ? j + by : j
    rows = cache.rows
    next = [n > from ? n + by : n for n in rows.next]
    cache.rows = Rows([map(moved, list) for list in rows.positions], next, rows.tracked)
    return cache
end

evict!(cache::Cache, positions) = not_editable("evict", cache)
shift!(cache::Cache, by, from) = not_editable("shift", cache)

not_editable(name::String, @nospecialize(cache)) =
    reject(:unsupported, name, "cache", "a KVCache, PerHeadCache, QuantisedCache or KiviCache", typeof(cache))

# The keys from a position on, turned by so many positions more. Where it throws, nothing is changed.
function turn_on!(cache::KVCache{T}, by::Int64, from::Int64) where {T}
    turned = narrow(turned_by(widened(cache.k), cache.rope, by), T)  # (D, room, Hkv, B)
    write_moved!(cache.k, turned, cache.rows, from)
    return nothing
end

function turn_on!(cache::QuantisedCache{T}, by::Int64, from::Int64) where {T}
    wide = convert(Array{compute_type(T),4}, first(restored_heads(cache)))  # (D, L, Hkv, B)
    turned = quantised(turned_by(wide, cache.rope, by), cache.k)
    moved(old, new) = write_moved!(old, new, cache.rows, from)
    foreach(moved, (cache.k.codes, cache.k.scale, cache.k.zero), (turned.codes, turned.scale, turned.zero))
    return nothing
end

function write_moved!(x, turned, rows::Rows, from::Int64)
    for (b, list) in enumerate(rows.positions)
        slots = findall(>=(from), list)
        x[:, slots, :, b] = view(turned, :, slots, :, b)
    end
    return x
end
