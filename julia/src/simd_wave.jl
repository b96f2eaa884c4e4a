# Tiles of many rows, some of one head together.
#
# What it changes: a block of keys and its values are taken by all tiles of a wave, one after the other,
# before the next block. They come from memory once for all of them, and from L2 for all but the first; what
# belongs to a tile, its queries and sums, is small beside that. No tile knows of the others: a query gets
# the same bits in any wave.
#
# While a block is scored, the next one is asked for, some lines by each tile.
#
# A tile does not look for hidden slots, whose weight is 0. If it comes to an end with a sum that is not
# finite, it is done once more, and passes them over: a hidden NaN or infinity has made its sums NaN, and
# nothing can make them finite again.
#
# What that gains against tiles one by one, which look for hidden slots, Float32, one thread, on a Xeon with
# AVX-512: 1.06 to 1.14 times as fast at 2048 queries and keys of 2 heads of 128, of which K and V are all of
# L2; nothing at 2048 of 64. Measured by julia/experiments/simd_ratio.jl simd 2048,D128 3 with this file and
# before it, in turns.
#
# Letters: D and Dv head sizes, N lanes of a register, M registers and R = M · N rows of a tile.

# Tiles of a wave. With D = 128 and Float32 each has 64 KiB of queries and sums; so many of them, the scores
# of one, and a block of keys and values, 256 KiB, leave half of an L2 of 2 MiB free.
const WAVE = 8

# Keys that are scored before some of the next block are asked for, and bytes that memory gives at once.
const ASK_BLOCK = 16
const LINE_BYTES = 64

# Buffers, kept from wave to wave, and from call to call; of one task.
struct Wave{T}
    sizes::NTuple{5,Int}  # rows of a tile, D, Dv, tiles, keys of a block: what there is room for
    tiles::Vector{Tile{T}}
    scratch::Scratch{T}
end

function Wave{T}(sizes::NTuple{5,Int}, M::Int) where {T}
    R, D, Dv, count, keys = sizes
    return Wave{T}(sizes, [Tile{T}(R, D, Dv, M) for _ in 1:count], Scratch{T}(R, keys))
end

# Waves that nobody works on. Memory that is new costs a page fault for every 4 KiB: at 256 queries 50 a call,
# of 180 with those of the output.
const IDLE_WAVES = Any[]
const IDLE_LOCK = Threads.SpinLock()

# A wave with room for so many rows.
function take_wave(call::SimdCall{T}, ::Type{V}, rows::Int) where {T,V}
    M = min(most_registers(V), cld(rows, lanes_of(V)))
    R = M * lanes_of(V)
    sizes = (R, call.D, call.Dv, cld(rows, R), min(KEY_BLOCK, cld(call.options.Tk, 16) * 16))
    idle = lock(IDLE_LOCK) do
        n = findfirst(wave -> wave isa Wave{T} && wave.sizes == sizes, IDLE_WAVES)
        n === nothing ? nothing : popat!(IDLE_WAVES, n)
    end
    return idle === nothing ? Wave{T}(sizes, M) : idle::Wave{T}
end

# As many are kept as there are threads, the latest.
function leave_wave(wave::Wave)
    lock(IDLE_LOCK) do
        length(IDLE_WAVES) >= Threads.nthreads() && popfirst!(IDLE_WAVES)
        push!(IDLE_WAVES, wave)
    end
    return nothing
end

# As many tiles as the rows make up.
function some_tiles(call::SimdCall{T}, ::Type{V}, rows::BlockRows, wave::Wave{T}) where {T,V}
    N, scratch = lanes_of(V), wave.scratch
    R = most_registers(V) * N
    first_key, last_key, count = typemax(Int), 0, 0
    for start in 0:R:rows.count-1
        piece = BlockRows(rows.b, rows.g, rows.first + start, min(R, rows.count - start))
        tile = wave.tiles[count+1]
        start!(tile, call, piece)
        if 2 * piece.count <= N
            few_rows(call, V, tile, scratch)
            continue
        end
        count += 1
        find_edges!(tile.edges, tile.sight, piece.count, N)
        pack!(tile, call, V)
        isempty(tile.keys) && continue
        first_key, last_key = min(first_key, first(tile.keys)), max(last_key, last(tile.keys))
    end
    if first_key <= last_key
        for block in key_blocks(first_key:last_key), n in 1:count
            tile = wave.tiles[n]
            keys = max(first(block), first(tile.keys)):min(last(block), last(tile.keys))
            # The next block, of which each tile asks for a piece.
            share = cld(KEY_BLOCK, count)
            start = last(block) + 1 + (n - 1) * share
            tile.ahead, tile.sharers = start:min(start + share - 1, last_key), count
            isempty(keys) || advance!(tile, scratch, call, V, keys, false)
        end
    end
    for n in 1:count
        tile = wave.tiles[n]
        if !sums_finite(tile, V, call.Dv)
            forget!(tile)
            for keys in key_blocks(tile.keys)
                advance!(tile, scratch, call, V, keys, true)
            end
        end
        unpack(tile, call, V)
    end
    return nothing
end

registers_of(tile::Tile, ::Type{V}) where {V} = cld(tile.rows.count, lanes_of(V))

# One tile over some keys of one block; `careful`: a hidden slot is passed over, whatever it holds. Slot (key,
# row) is at (key - 1) · R + row.
function advance!(
    tile::Tile{T}, scratch::Scratch{T}, call::SimdCall{T}, ::Type{V}, keys::UnitRange{Int}, careful::Bool
) where {T,V}
    M, N = registers_of(tile, V), lanes_of(V)
    stretches = scratch.stretches
    if first(tile.common) <= first(keys) && last(keys) <= last(tile.common)
        empty!(stretches)
        push!(stretches, Stretch(keys, 0, M, true))
    else
        cut!(stretches, tile.edges, M, N, keys)
    end
    copyto!(tile.peaks, tile.top)
    score_keys!(tile, scratch, call, V, keys)
    GC.@preserve tile begin
        moved = (pointer(tile.peaks), pointer(tile.top), pointer(tile.shifts), pointer(tile.total))
        raise_top(V, M * N, moved..., pointer(tile.sums), call.Dv)
    end
    weigh_keys!(tile, scratch, call, V, keys, careful)
    return nothing
end

# Scores, what hides some of them or changes them, and the peaks of that.
function score_keys!(
    tile::Tile{T}, scratch::Scratch{T}, call::SimdCall{T}, ::Type{V}, keys::UnitRange{Int}
) where {T,V}
    N, rows, bare = lanes_of(V), tile.rows, is_bare(call.options)
    R = registers_of(tile, V) * N
    all(s -> s.whole, scratch.stretches) || set_bounds!(scratch, tile, R, first(keys))
    GC.@preserve tile scratch for stretch in scratch.stretches
        stretch.count == 0 && continue
        lane, from, count = stretch.skipped * N, first(stretch.keys) - first(keys), length(stretch.keys)
        queries, scores = at(pointer(tile.queries), lane), at(pointer(scratch.scores), from * R + lane)
        peaks, spare = at(pointer(tile.peaks), lane), pointer(scratch.spare)
        found = bare && stretch.whole ? peaks : spare
        for part in tiles(stretch.keys, ASK_BLOCK)
            ask_ahead(tile, call, length(part))
            k = column(call.k, first(part), rows.g, rows.b)
            out = at(scores, (first(part) - first(stretch.keys)) * R)
            places = (queries, R, k, call.k.apart, call.D, length(part), out, found)
            with_registers(score_block, V, stretch.count, places...)
        end
        bare && !stretch.whole || continue
        starts, stops = at(pointer(scratch.starts), lane), at(pointer(scratch.stops), lane)
        with_registers(hide_keys, V, stretch.count, scores, R, from, count, starts, stops, peaks)
    end
    bare && return nothing
    alter!(Slots(scratch.scores, R, 1), call.options, rows, tile.sight, keys)
    GC.@preserve tile scratch for stretch in scratch.stretches
        stretch.count == 0 && continue
        lane, from = stretch.skipped * N, first(stretch.keys) - first(keys)
        scores, peaks = at(pointer(scratch.scores), from * R + lane), at(pointer(tile.peaks), lane)
        with_registers(find_peaks, V, stretch.count, scores, R, length(stretch.keys), peaks)
    end
    return nothing
end

# Asks for some of the keys that are due next, and their values: as many as are scored meanwhile, by each of
# the tiles of a wave in turn.
function ask_ahead(tile::Tile{T}, call::SimdCall{T}, scored::Int) where {T}
    count = min(cld(scored, tile.sharers), length(tile.ahead))
    count == 0 && return nothing
    for j in first(tile.ahead):first(tile.ahead)+count-1
        ask_for(column(call.k, j, tile.rows.g, tile.rows.b), call.D)
        ask_for(column(call.v, j, tile.rows.g, tile.rows.b), call.Dv)
    end
    tile.ahead = first(tile.ahead)+count:last(tile.ahead)
    return nothing
end

# All lines of memory of `count` numbers.
@inline function ask_for(p::Ptr{T}, count::Int) where {T}
    for byte in 0:LINE_BYTES:count*sizeof(T)-1
        prefetch(p + byte)
    end
end

# What each row sees, counted from the first of these keys; rows past the last one are of no meaning.
function set_bounds!(scratch::Scratch{T}, tile::Tile{T}, R::Int, first_key::Int) where {T}
    for r in 1:R
        seen = r <= tile.rows.count
        scratch.starts[r] = seen ? clamp(tile.sight.starts[r] - first_key, 0, KEY_BLOCK) : 0
        scratch.stops[r] = seen ? clamp(tile.sight.stops[r] - first_key, -1, KEY_BLOCK) : KEY_BLOCK
    end
    return nothing
end

# Scores become weights, and weights of values sums.
function weigh_keys!(
    tile::Tile{T}, scratch::Scratch{T}, call::SimdCall{T}, ::Type{V}, keys::UnitRange{Int}, careful::Bool
) where {T,V}
    N, rows = lanes_of(V), tile.rows
    R = registers_of(tile, V) * N
    GC.@preserve tile scratch for stretch in scratch.stretches, part in tiles(stretch.keys, VALUE_BLOCK)
        stretch.count == 0 && continue
        lane, from, count = stretch.skipped * N, first(part) - first(keys), length(part)
        weights = at(pointer(scratch.scores), from * R + lane)
        shifts, total = at(pointer(tile.shifts), lane), at(pointer(tile.total), lane)
        with_registers(exponentials, V, stretch.count, weights, R, count, shifts, total)
        if careful && !all_finite(call, rows, part)
            slots, by_channel = Slots(scratch.scores, R, 1), Slots(tile.sums, R, 1)
            weigh_carefully!(by_channel, slots, call, rows, tile.sight, first(keys), part)
        else
            v, sums = column(call.v, first(part), rows.g, rows.b), at(pointer(tile.sums), lane)
            places = (weights, R, v, call.v.apart, count, call.Dv, sums)
            with_registers(weigh_block, V, stretch.count, places...)
        end
    end
    return nothing
end

# Q of the rows, scaled, with the rows first; scale goes onto q: a sum that fits when scaled must not
# overflow.
function pack!(tile::Tile{T}, call::SimdCall{T}, ::Type{V}) where {T,V}
    rows, R = tile.rows, registers_of(tile, V) * lanes_of(V)
    rows.count == R || fill!(tile.queries, zero(T))
    r = 1
    while r <= rows.count  # the rows of one head at a time: they are equally far apart
        i, h = query_of(call.options, rows, r)
        count = min(rows.count - r + 1, call.options.Tq - i + 1)
        q = column(call.q, i, h, rows.b)
        GC.@preserve tile turn(V, q, call.q.apart, at(pointer(tile.queries), r - 1), R, count, call.D)
        r += count
    end
    GC.@preserve tile multiply(V, pointer(tile.queries), R * call.D, call.scale)
    return nothing
end

# Whether no sum of any row is NaN or infinite. Rows past the last one count too, and cost at most time.
sums_finite(tile::Tile, ::Type{V}, Dv::Int) where {V} =
    GC.@preserve tile all_numbers(V, pointer(tile.sums), registers_of(tile, V) * lanes_of(V) * Dv)

# Output and lse of the rows. They are consecutive there: row by row, Dv numbers each.
function unpack(tile::Tile{T}, call::SimdCall{T}, ::Type{V}) where {T,V}
    rows, R, Dv = tile.rows, registers_of(tile, V) * lanes_of(V), call.Dv
    line = line_of(call, rows)
    fill!(tile.factors, zero(T))
    for r in 1:rows.count
        _, h = query_of(call.options, rows, r)
        lse, tile.factors[r] = finish(tile, call, r, h)
        unsafe_store!(call.lse, lse, line + r)
    end
    GC.@preserve tile begin
        sums = pointer(tile.sums)
        multiply_rows(V, sums, R, Dv, pointer(tile.factors))
        turn(V, sums, R, at(call.output, line * Dv), Dv, Dv, rows.count)
    end
    return nothing
end
