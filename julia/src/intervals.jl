# The keys that a query sees by its position alone (causal, window, lengths), as an interval: what never asks
# about a key outside it skips whole blocks, and masks only those at an edge of an interval.
#
# Rows: all queries of the G heads of one KV head stand in one line, head by head, and a block has a piece of
# it. `options` are those of the call, `SlotOptions` (simd_mask.jl).
#
# Letters: G query heads a KV head, Tq and Tk query and key lengths, R rows of a block.

# `count` rows of the line of KV head g in row b of the batch, from row `first` on, counted from 0.
struct BlockRows
    b::Int
    g::Int
    first::Int
    count::Int
end

# Query and head of row r, counted from 1.
@inline function query_of(options, rows::BlockRows, r::Int)
    h, i = divrem(rows.first + r - 1, options.Tq)
    return i + 1, (rows.g - 1) * options.G + h + 1
end

# The keys that each row sees by its position, first and last.
struct Sight
    starts::Vector{Int}  # (R,)
    stops::Vector{Int}
end
Sight(R::Int) = Sight(Vector{Int}(undef, R), Vector{Int}(undef, R))

# The keys that some row sees, and those that all rows see, by their positions.
function reach!(sight::Sight, options, rows::BlockRows)
    first_key, last_key, first_common, last_common = options.Tk + 1, 0, 1, options.Tk
    for r in 1:rows.count
        i, _ = query_of(options, rows, r)
        start, stop = interval(options.rule, rows.b, i)
        sight.starts[r], sight.stops[r] = start, stop
        first_common, last_common = max(first_common, start), min(last_common, stop)
        if start <= stop
            first_key, last_key = min(first_key, start), max(last_key, stop)
        end
    end
    return first_key:last_key, first_common:last_common
end

# The keys that query i sees by its position: causal, window and lengths together. Where keys have positions
# of their own, all that exist; `alter!` (simd_mask.jl) looks at each then.
function interval(rule::MaskRule, b::Int, i::Int)
    start, stop = 1, rule.ends[b]
    rule.kv_positions === nothing || return start, stop
    p = i - 1 + rule.offsets[b]
    if rule.causal
        stop = clamp(p + 1, 0, stop)
    end
    if rule.left != typemax(Int)
        start = Int(clamp(Int128(p) - rule.left + 1, 1, stop + 1))
    end
    if rule.right != typemax(Int)
        stop = Int(clamp(Int128(p) + rule.right + 1, 0, stop))
    end
    return start, stop
end
