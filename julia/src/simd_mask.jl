# What happens to scores between their sum and their exponential: softcap, bias and masks, slot by slot, in a
# block of some keys and some rows. For the rungs that hold no table of scores; the rows are those of
# intervals.jl.
#
# Letters: G query heads a KV head, Tq and Tk query and key lengths.

# The options of one call that concern single slots.
struct SlotOptions{T}
    G::Int
    Tq::Int
    Tk::Int
    softcap::Union{Nothing,T}
    bias::Any  # nothing, or four dimensions, each the scores' or 1
    rule::MaskRule
end

function SlotOptions{T}(q, k, mask, bias, softcap) where {T}
    @nospecialize mask bias softcap
    Tq, Hq, B = size(q, 2), size(q, 3), size(q, 4)
    Tk, Hkv = size(k, 2), size(k, 3)
    softcap = softcap === nothing ? nothing : T(softcap)
    return SlotOptions{T}(Hq ÷ max(Hkv, 1), Tq, Tk, softcap, four_dims(bias), mask_rule(mask, Tk, B))
end

# Whether scores are used as they come from the kernel, but for what a row does not see by its position.
is_bare(options::SlotOptions) =
    options.softcap === nothing &&
    options.bias === nothing &&
    options.rule.keep === nothing &&
    options.rule.kv_positions === nothing

# Whether all scores of these keys are used so.
is_plain(options::SlotOptions, keys, common) =
    is_bare(options) && first(common) <= first(keys) && last(keys) <= last(common)

# Where the slots of a block are: (key, row) at (key - 1) · per_key + (row - 1) · per_row + 1.
struct Slots{T}
    scores::Vector{T}
    per_key::Int
    per_row::Int
end
@inline place(s::Slots, m::Int, r::Int) = (m - 1) * s.per_key + (r - 1) * s.per_row + 1
@inline Base.getindex(s::Slots, m::Int, r::Int) = s.scores[place(s, m, r)]
@inline Base.setindex!(s::Slots, x, m::Int, r::Int) = (s.scores[place(s, m, r)] = x)

# Softcap, bias and masks of the scores of these keys.
function alter!(slots::Slots{T}, options::SlotOptions{T}, rows::BlockRows, sight::Sight, keys) where {T}
    softcap, bias, rule = options.softcap, options.bias, options.rule
    softcap === nothing || cap_slots!(slots, length(keys), rows.count, softcap)
    bias === nothing || bias_slots!(slots, options, rows, keys, bias)
    rule.keep === nothing || keep_slots!(slots, options, rows, keys, rule.keep)
    rule.kv_positions === nothing || stand_slots!(slots, options, rows, keys, rule.kv_positions)
    for r in 1:rows.count
        for j in first(keys):min(sight.starts[r] - 1, last(keys))
            slots[j-first(keys)+1, r] = T(-Inf)
        end
        for j in max(sight.stops[r] + 1, first(keys)):last(keys)
            slots[j-first(keys)+1, r] = T(-Inf)
        end
    end
    return nothing
end

function cap_slots!(slots::Slots{T}, keys::Int, rows::Int, c::T) where {T}
    for r in 1:rows, m in 1:keys
        slots[m, r] = c * tanh(slots[m, r] / c)
    end
end

# A bias of -Inf hides its slot whatever the score is.
function bias_slots!(
    slots::Slots{T}, options::SlotOptions{T}, rows::BlockRows, keys, bias::AbstractArray{T,4}
) where {T}
    for r in 1:rows.count
        i, h = query_of(options, rows, r)
        entries = part(bias, keys, i, h, rows.b)
        for m in 1:length(keys)
            x = entries[min(m, length(entries))]
            slots[m, r] = x == T(-Inf) ? x : slots[m, r] + x
        end
    end
end

function keep_slots!(
    slots::Slots{T}, options::SlotOptions{T}, rows::BlockRows, keys, keep::AbstractArray{Bool,4}
) where {T}
    for r in 1:rows.count
        i, h = query_of(options, rows, r)
        entries = part(keep, keys, i, h, rows.b)
        for m in 1:length(keys)
            entries[min(m, length(entries))] || (slots[m, r] = T(-Inf))
        end
    end
end

# Keys that stand at positions of their own.
function stand_slots!(
    slots::Slots{T}, options::SlotOptions{T}, rows::BlockRows, keys, positions::Matrix{Int64}
) where {T}
    rule = options.rule
    for r in 1:rows.count
        i, _ = query_of(options, rows, r)
        p = i - 1 + rule.offsets[rows.b]
        for (m, j) in enumerate(keys)
            t = positions[j, rows.b]
            shown = (!rule.causal || t <= p) & (p - t <= rule.left) & (t - p <= rule.right)
            shown || (slots[m, r] = T(-Inf))
        end
    end
end
