# One tile of queries: where its arrays lie, its buffers, and what surrounds the kernels, in plain loops.

# Where an array (n, T, H, B) lies: its columns are consecutive, everything else is a number of elements
# apart.
struct Columns{T}
    first::Ptr{T}
    apart::Int  # of two tokens
    heads::Int
    rows::Int
end

# An array whose columns are consecutive: the array itself where it is one.
dense_columns(x::Array) = x
dense_columns(x::SubArray{T,4,<:Array}) where {T} = x isa StridedArray && stride(x, 1) == 1 ? x : Array(x)
dense_columns(x) = Array(x)

# The caller preserves x.
columns(x) = Columns(pointer(x), stride(x, 2), stride(x, 3), stride(x, 4))
@inline column(x::Columns, t::Int, h::Int, b::Int) =
    at(x.first, (t - 1) * x.apart + (h - 1) * x.heads + (b - 1) * x.rows)

# The arguments of one call, checked; what the options are is asked in plain loops only.
struct SimdCall{T}
    q::Columns{T}
    k::Columns{T}
    v::Columns{T}
    output::Ptr{T}  # (Dv, Tq, Hq, B)
    lse::Ptr{T}  # (Tq, Hq, B)
    D::Int
    Dv::Int
    Hkv::Int
    B::Int
    scale::T
    sinks::Union{Nothing,Vector{T}}  # (Hq,)
    options::SlotOptions{T}
end

# What belongs to one tile of at most R rows, kept from tile to tile; of one task.
mutable struct Tile{T}
    queries::Vector{T}  # scaled: (R, D), or for few rows (D, R)
    sums::Vector{T}  # (R, Dv), or (Dv, R)
    peaks::Vector{T}  # (R): the largest score that was ever seen, this block included
    top::Vector{T}  # (R): what the exponentials so far are relative to
    total::Vector{T}  # (R): their sum
    shifts::Vector{T}  # (R): top, or 0 where it is -Inf
    factors::Vector{T}  # (R): what the sums are multiplied by in the end
    sight::Sight  # (R)
    edges::Edges  # of its registers
    rows::BlockRows
    keys::UnitRange{Int}  # that some row sees by its position
    common::UnitRange{Int}  # that all rows see
    ahead::UnitRange{Int}  # that it asks for, for a later block
    sharers::Int  # tiles that ask so
end

function Tile{T}(R::Int, D::Int, Dv::Int, M::Int) where {T}
    some(n) = Vector{T}(undef, n)
    buffers = (some(R * D), some(R * Dv), (some(R) for _ in 1:5)...)
    return Tile{T}(buffers..., Sight(R), Edges(M), BlockRows(1, 1, 0, 0), 1:0, 1:0, 1:0, 1)
end

# Buffers that hold nothing from one block of keys of one tile to the next; of one task.
struct Scratch{T}
    scores::Vector{T}  # of one block of keys, then their exponentials: (R, keys), or (keys, R)
    starts::Vector{T}  # (R): the first and the last key that a row sees, counted within the block
    stops::Vector{T}
    spare::Vector{T}  # (R)
    stretches::Vector{Stretch}
end

function Scratch{T}(R::Int, keys::Int) where {T}
    some(n) = Vector{T}(undef, n)
    return Scratch{T}(some(R * keys), some(R), some(R), some(R), Stretch[])
end

# Takes some rows, of which no key is known yet.
function start!(tile::Tile{T}, call::SimdCall{T}, rows::BlockRows) where {T}
    tile.rows = rows
    tile.keys, tile.common = reach!(tile.sight, call.options, rows)
    forget!(tile)
    return nothing
end

function forget!(tile::Tile{T}) where {T}
    fill!(tile.sums, zero(T))
    fill!(tile.total, zero(T))
    fill!(tile.top, T(-Inf))
    return nothing
end

# A weighted sum that passes over hidden slots, whose 0 times a NaN or an infinity would be NaN: for the few
# blocks that have both. The kernels' sums in the kernels' order. `weights` of the keys from `from` on,
# `sums` by channel.
function weigh_carefully!(
    sums::Slots{T}, weights::Slots{T}, call::SimdCall{T}, rows::BlockRows, sight::Sight, from::Int, keys
) where {T}
    hidden = hidden_slots(call, rows, sight, keys)
    for (m, j) in enumerate(keys), r in 1:rows.count
        hidden[r, m] && continue
        line = column(call.v, j, rows.g, rows.b)
        for d in 1:call.Dv  # of a line of Dv values
            sums[d, r] = fma(weights[j-from+1, r], unsafe_load(line, d), sums[d, r])
        end
    end
end

# The scores once more, one by one, of which only is asked whether they are -Inf.
function hidden_slots(call::SimdCall{T}, rows::BlockRows, sight::Sight, keys) where {T}
    scores = Matrix{T}(undef, rows.count, length(keys))
    for (m, j) in enumerate(keys), r in 1:rows.count
        i, h = query_of(call.options, rows, r)
        q, k = column(call.q, i, h, rows.b), column(call.k, j, rows.g, rows.b)
        score = zero(T)
        for d in 1:call.D  # of lines of D numbers
            score = fma(call.scale * unsafe_load(q, d), unsafe_load(k, d), score)
        end
        scores[r, m] = score
    end
    alter!(Slots(vec(scores), rows.count, 1), call.options, rows, sight, keys)
    return scores .== T(-Inf)
end

# Whether all values of these keys are finite.
function all_finite(call::SimdCall{T}, rows::BlockRows, keys) where {T}
    for j in keys
        line = column(call.v, j, rows.g, rows.b)
        for d in 1:call.Dv
            isfinite(unsafe_load(line, d)) || return false
        end
    end
    return true
end

# The sink joins the sum: lse, and what the weighted sums of row r are to be multiplied by. A factor in place
# of a division a number: one rounding more, of the 16 that the bound grants to the exponentials, and they
# use 8.
function finish(tile::Tile{T}, call::SimdCall{T}, r::Int, h::Int) where {T}
    top, total, sinks = tile.top[r], tile.total[r], call.sinks
    sink = sinks === nothing ? T(-Inf) : sinks[h]
    empty = top == T(-Inf) && total == 0
    if sink == T(-Inf)  # the common case, without an exponential
        return top + log(total == 0 ? one(T) : total), empty ? zero(T) : 1 / total
    end
    highest = max(top, sink)
    shift = highest == T(-Inf) ? zero(T) : highest
    shrink = exp(top - shift)
    whole = total * shrink + exp(sink - shift)
    lse = highest + log(whole == 0 ? one(T) : whole)
    return lse, empty ? zero(T) : shrink / whole
end
