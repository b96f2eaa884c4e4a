# Where the slots of a cache stand, and the arrays in which they lie.
#
# A *slot* holds one token of one row. Every slot has a position, and they rise within a row; mostly they are
# 0, 1, 2, …, but a window forgets the older ones, and a caller may take some out or move them.
#
# A slot may have, for each key/value head, the weights that it was given. They are here, so that they go
# wherever the slot goes.
#
# Letters: B batch, L slots of the longest row, T new positions, H heads, n numbers a slot and head.

struct Rows
    positions::Vector{Vector{Int64}}  # of the slots of each row
    next::Vector{Int64}  # (B,), the position of each row's next token
    tracked::Vector{Vector{Vector{Float64}}}  # of each row and head; no heads where nothing is tracked
end

Rows(batch::Int, tracked_heads::Int = 0) = Rows(
    [Int64[] for _ in 1:batch],
    zeros(Int64, batch),
    [[Float64[] for _ in 1:tracked_heads] for _ in 1:batch],
)

emptied(rows::Rows) = picked(Rows(rows.positions, zero(rows.next), rows.tracked), map(_ -> 1:0, rows.next))

slot_counts(rows::Rows) = Int64[length(list) for list in rows.positions]
longest(rows::Rows) = reduce(max, slot_counts(rows); init = 0)

# New slots after the last position of each row.
function advance!(rows::Rows, counts::Vector{Int})
    for (b, count) in enumerate(counts)
        append!(rows.positions[b], rows.next[b] .+ (0:count-1))
        foreach(list -> append!(list, zeros(count)), rows.tracked[b])
        rows.next[b] += count
    end
    return rows
end

# The first slots of each row, and the counter back to where they end.
function cut!(rows::Rows, counts)
    for (b, n) in enumerate(counts)
        foreach(list -> resize!(list, Int(n)), (rows.positions[b], rows.tracked[b]...))
    end
    rows.next .= [isempty(list) ? 0 : last(list) + 1 for list in rows.positions]
    return rows
end

function picked(rows::Rows, slots)
    some(lists, kept) = map(list -> list[kept], lists)
    positions = map((list, kept) -> list[kept], rows.positions, slots)
    return Rows(positions, copy(rows.next), map(some, rows.tracked, slots))
end

function reordered(rows::Rows, index::Vector{Int})
    tracked = [map(copy, rows.tracked[b]) for b in index]
    return Rows([copy(rows.positions[b]) for b in index], rows.next[index], tracked)
end

# (L, H, B), zero beyond a row.
function tracked_table(rows::Rows, num_heads::Int)
    table = zeros(longest(rows), num_heads, length(rows.next))
    for (b, lists) in enumerate(rows.tracked), (h, list) in enumerate(lists)
        table[1:length(list), h, b] = list
    end
    return table
end

# (L, B), -1 beyond a row.
function position_table(rows::Rows)
    table = fill(Int64(-1), longest(rows), length(rows.next))
    for (b, list) in enumerate(rows.positions)
        table[1:length(list), b] = list
    end
    return table
end

# Of the T positions that are given, those that count in a row: its first ones, or its last.
counted_part(len::Int, count::Int, padding) = padding == "left" ? (len-count+1:len) : (1:count)

# (B,): where the first of the T positions of an append will stand, also when it does not count.
first_positions(rows::Rows, len::Int, counts::Vector{Int}, padding) =
    Int64[next - first(counted_part(len, n, padding)) + 1 for (next, n) in zip(rows.next, counts)]

# (T, B): where all of them will.
new_positions(rows::Rows, len::Int, counts::Vector{Int}, padding) =
    Int64[from + t for t in 0:len-1, from in first_positions(rows, len, counts, padding)]

# Room for more slots.
function grown(x::Array{T,4}, room::Int) where {T}
    n, len, num_heads, batch = size(x)
    larger = zeros(T, n, room, num_heads, batch)
    larger[:, 1:len, :, :] = x
    return larger
end

# What counts of `new` (n, T, H, B) into x (n, room, H, B), in each row after its first `starts` slots.
function write_slots!(x::Array{T,4}, new, starts, counts, padding) where {T}
    for b in 1:size(x, 4)
        part = counted_part(size(new, 2), counts[b], padding)
        x[:, starts[b] .+ (1:counts[b]), :, b] = view(new, :, part, :, b)  # (n, count, H)
    end
    return x
end

# A copy with only some slots of each row, in room for `room`: zero beyond them, by selection, since what lies
# beyond a row's length may be NaN.
function gathered(x::AbstractArray{T,4}, slots, room::Int) where {T}
    copied = zeros(T, size(x, 1), room, size(x, 3), size(x, 4))  # (n, room, H, B)
    for (b, kept) in enumerate(slots)
        copied[:, 1:length(kept), :, b] = view(x, :, kept, :, b)
    end
    return copied
end

all_slots(rows::Rows) = [1:length(list) for list in rows.positions]
