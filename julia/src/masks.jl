# Which query may see which key.
#
# A `Mask` holds conditions, and a slot is visible when all of them allow it. They are about *positions*,
# counted from 0: query i of 1:Tq stands at position p = i - 1 + q_offset, key j of 1:Tk at position
# t = j - 1, or wherever `kv_positions` puts it.
#
#     causal       t <= p
#     window       p - left <= t <= p + right
#     kv_lengths   j <= kv_lengths[b]
#     keep         keep[j, i, h, b]
#
# Letters: B batch, Hq query heads, Tq and Tk query and key lengths.

"""
    Mask(; keep, causal, window, kv_lengths, q_offset, kv_positions)

The conditions of one call; the default hides nothing.

- `keep`: `Bool`, true = attend, broadcasts to `(Tk, Tq, Hq, B)`; dimensions align on the left, so rank 3 is
  `(Tk, Tq, Hq)`
- `causal`: no query sees a key that stands after it
- `window`: `(left, right)`, how many keys on each side of itself a query sees; `nothing` = open on that side,
  0 is 0
- `kv_lengths`: `Int64`, `(B,)`, how many keys of each row exist
- `q_offset`: position of the first query, counted from 0; an integer for all rows, or `Int64`, `(B,)`.
  `nothing` = 0; a cache aligns the last query with the last position of its row instead
- `kv_positions`: `Int64`, `(Tk, B)`, where each key stands; `nothing` = 0, 1, 2, … A cache knows its own

Positions beyond ±2^62, where none is, are taken for that.
"""
Base.@kwdef struct Mask
    # Any value fits, so that a wrong one is named by the call it is given to. One concrete type for all masks
    # also means that nothing is compiled again for another combination of conditions.
    keep = nothing
    causal = false
    window = nothing
    kv_lengths = nothing
    q_offset = nothing
    kv_positions = nothing

    function Mask(keep, causal, window, kv_lengths, q_offset, kv_positions = nothing)
        @nospecialize
        return new(keep, causal, window, kv_lengths, q_offset, kv_positions)
    end
end

"""
    visible(mask, kv_len, q_len, num_heads, batch)

The mask as a table `Array{Bool}` `(Tk, Tq, Hq, B)`, true = attend.

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function visible(mask::Mask, kv_len::Integer, q_len::Integer, num_heads::Integer, batch::Integer)
    Tk, Tq, Hq, B = dims = Int.((kv_len, q_len, num_heads, batch))
    check_mask("visible", mask, dims)
    rule = mask_rule(mask, Tk, B)
    table = Array{Bool}(undef, dims)  # (Tk, Tq, Hq, B)
    for b in 1:B, h in 1:Hq
        table[:, :, h, b] = visible_tile(rule, 1:Tk, 1:Tq, h, b)  # (Tk, Tq)
    end
    return table
end

# The conditions of a mask, with a number in place of each `nothing`.
struct MaskRule
    causal::Bool
    left::Int
    right::Int
    ends::Vector{Int}  # (B,)
    offsets::Vector{Int}  # (B,)
    kv_positions::Union{Nothing,Matrix{Int64}}  # (Tk, B)
    keep  # nothing, or four dimensions, each the table's or 1
end

function mask_rule(mask::Mask, kv_len::Int, batch::Int)
    left, right = reach(mask.window)::Tuple{Int,Int}
    ends = per_row(mask.kv_lengths, kv_len, batch)::Vector{Int}
    offsets = row_offsets(mask.q_offset, batch)::Vector{Int}
    stand = mask.kv_positions === nothing ? nothing : Matrix{Int64}(position_of.(mask.kv_positions))
    return MaskRule(mask.causal, left, right, ends, offsets, stand, four_dims(mask.keep))
end

# The table for some keys and queries of one head and row.
function visible_tile(rule::MaskRule, keys::UnitRange{Int}, queries::UnitRange{Int}, h::Int, b::Int)
    tile = fill(true, length(keys), length(queries))  # (keys, queries)
    for (n, i) in enumerate(queries), (m, j) in enumerate(keys)
        # 1. positions: of this query and of this key, both counted from 0
        p, t = i - 1 + rule.offsets[b], key_position(rule.kv_positions, j, b)

        # 2. causal: nothing after the query
        shown = !rule.causal || t <= p

        # 3. window: nothing too far to the left or to the right
        shown &= (p - t <= rule.left) & (t - p <= rule.right)

        # 4. lengths: nothing beyond the end of the row
        tile[m, n] = shown & (j <= rule.ends[b])
    end

    # 5. keep: nothing that the caller excludes
    keep_only!(tile, part(rule.keep, keys, queries, h, b))
    return tile
end

key_position(::Nothing, j::Int, b::Int) = j - 1
key_position(positions::Matrix{Int64}, j::Int, b::Int) = positions[j, b]

# An open side reaches further than any position.
reach(::Nothing) = (typemax(Int), typemax(Int))
reach(window::Tuple) = (reach_side(window[1]), reach_side(window[2]))
reach_side(::Nothing) = typemax(Int)
reach_side(n) = Int(min(n, typemax(Int)))::Int

# (B,): one number a row.
per_row(::Nothing, default::Int, batch::Int) = fill(default, batch)
per_row(n::AbstractVector, default::Int, batch::Int) = Vector{Int}(n)

# (B,): where the first query of each row stands.
row_offsets(q_offset, batch::Int) = fill(position_of(q_offset), batch)
row_offsets(q_offset::AbstractVector, batch::Int) = Int[position_of(n) for n in q_offset]

keep_only!(tile, ::Nothing) = tile
keep_only!(tile, keep) = tile .&= keep

# An array that broadcasts to (Tk, Tq, Hq, B): with all its dimensions, and the part of it for one tile.
four_dims(::Nothing) = nothing
four_dims(x) = reshape(x, ntuple(d -> size(x, d), 4))

part(::Nothing, keys, queries, h, b) = nothing
part(x, keys, queries, h, b) =
    view(x, pick(x, 1, keys), pick(x, 2, queries), pick(x, 3, h), pick(x, 4, b))
pick(x, d::Int, range::UnitRange{Int}) = size(x, d) == 1 ? (1:1) : range
pick(x, d::Int, n::Int) = size(x, d) == 1 ? 1 : n
