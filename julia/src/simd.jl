# Scaled dot-product attention in vector instructions: the numbers of sdpa, in tiles, by kernels in pure
# Julia.
#
# What it changes against flash.jl: the arithmetic of a tile is done by registers of up to 16 numbers
# (simd_kernel.jl; simd_few.jl for the few rows of a decode step), the exponential is a short chain of
# multiply-adds (simd_exp.jl), some tiles share what they bring into the cache (simd_wave.jl), and which keys
# a row sees by its position is an interval, so that what no register of a tile sees costs nothing
# (simd_edge.jl). No BLAS.
#
# What that gains over sdpa.jl and blocked.jl, Float32, one thread, on a Xeon with AVX-512: 133 and 1.5 times
# as fast at 512 queries and keys of 8 heads of 64, 155 and 1.9 times when causal, 44 and 3.3 times for a
# decode step of 1024 keys (32 heads on 8, of 128): julia/experiments/simd_ratio.jl naive,blocked,simd
# 512,causal-512,decode-1024 8
#
# A tile depends on nothing but the call: any number of tasks shares the tiles, and gives the same bits.
#
# Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk query and key lengths, D and
# Dv head sizes, N lanes of a register, R rows of a tile.
#
# Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
# "FlashAttention", 2022 (tiles); Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication",
# 2008 (sums in registers).

# Keys that are scored, exponentiated and weighed before the next ones. Blocks start at multiples of it,
# whatever the rows see, so that the order of a row's sums depends on nothing else. 256 keys of 64 rows are
# 64 KiB, in L2.
const KEY_BLOCK = 256

"""
    simd(q, k, v; mask = Mask(), bias, scale, softcap, sinks, tasks = 1) -> (output, lse)

[`sdpa`](@ref) by kernels in vector instructions; same arguments and errors, but for the dropout. `output` is
`(Dv, Tq, Hq, B)`, `lse` `(Tq, Hq, B)`. `tasks` share the work, and their number changes no bit.

`Float32` and `Float64`; half types are widened first.
"""
function simd(
    q, k, v; mask = Mask(), bias = nothing, scale = nothing, softcap = nothing, sinks = nothing, tasks = 1
)
    @nospecialize mask bias scale softcap sinks tasks
    check_sdpa("simd", q, k, v, mask, bias, scale, softcap, sinks, nothing)
    check_whole("simd", "tasks", tasks, 1)
    check_wide("simd", q)
    lanes = lane_count()
    wide_q, wide_k, wide_v = dense_columns(widened(q)), dense_columns(widened(k)), dense_columns(widened(v))
    bias, sinks, tasks = widened(bias), widened(sinks), Int(tasks)
    state = simd_attention(wide_q, wide_k, wide_v, mask, bias, scale, softcap, sinks, lanes, tasks)
    return narrowed(state, eltype(q))
end

function simd_attention(q, k, v, mask, bias, scale, softcap, sinks, lanes::Int, tasks::Int)
    @nospecialize mask bias scale softcap sinks
    T = eltype(q)
    D, Tq, Hq, B = size(q)
    Dv, _, Hkv, _ = size(v)
    output = Array{T}(undef, Dv, Tq, Hq, B)  # (Dv, Tq, Hq, B)
    lse = Array{T}(undef, Tq, Hq, B)  # (Tq, Hq, B)
    sinks = sinks === nothing ? nothing : Vector{T}(sinks)
    options = SlotOptions{T}(q, k, mask, bias, softcap)
    scale = scale_of(T, scale, D)
    GC.@preserve q k v output lse begin
        places = (columns(q), columns(k), columns(v), pointer(output), pointer(lse))
        call = SimdCall{T}(places..., D, Dv, Hkv, B, scale, sinks, options)
        # Inference ends here: only kernels for the register that is used get compiled, and Julia 1.5 fails at
        # inferring them for one of which nothing is known.
        Base.invokelatest(all_tiles, call, REGISTER_OF[(lanes, T)], tasks)
    end
    return (output = output, lse = lse)
end

# Registers of queries in the largest tile: 16 sums fit where there are 32 registers, as with AVX-512.
@inline most_registers(::Type{V}) where {V} = sizeof(V) == 64 ? 4 : 2

# Waves of tiles are numbered, and each task takes the next one that nobody has taken: the later rows first,
# which are the longer ones when causal.
function all_tiles(call::SimdCall{T}, ::Type{V}, tasks::Int) where {T,V}
    line = call.options.G * call.options.Tq  # rows of a KV head
    line == 0 && return nothing
    R = most_registers(V) * lanes_of(V)
    heads = call.Hkv * call.B
    # So many tiles together that each task has some waves.
    width = tasks == 1 ? WAVE : clamp(cld(line, R) * heads ÷ (4 * tasks), 1, WAVE)
    count = cld(line, width * R) * heads
    next = Threads.Atomic{Int}(count)
    work() = work_off(call, V, next, heads, width * R)
    if min(tasks, count) == 1
        work()
    else
        foreach(wait, [Threads.@spawn work() for _ in 1:min(tasks, count)])
    end
    return nothing
end

function work_off(call::SimdCall{T}, ::Type{V}, next, heads::Int, most::Int) where {T,V}
    line = call.options.G * call.options.Tq
    wave = take_wave(call, V, min(line, most))
    while true
        n = Threads.atomic_sub!(next, 1)
        n >= 1 || break
        piece, head = fldmod1(n, heads)
        b, g = fldmod1(head, call.Hkv)
        first = (piece - 1) * most
        some_tiles(call, V, BlockRows(b, g, first, min(most, line - first)), wave)
    end
    leave_wave(wave)
    return nothing
end

# The blocks of keys that make up a range.
key_blocks(keys::UnitRange{Int}) =
    (max(start, first(keys)):min(start + KEY_BLOCK - 1, last(keys)) for
     start in fld(first(keys) - 1, KEY_BLOCK)*KEY_BLOCK+1:KEY_BLOCK:last(keys))

# Few rows, whose channels are in the lanes. Slot (key, row) is at (row - 1) · width + key.
function few_rows(call::SimdCall{T}, ::Type{V}, tile::Tile{T}, scratch::Scratch{T}) where {T,V}
    D, Dv, N, rows = call.D, call.Dv, lanes_of(V), tile.rows
    for r in 1:rows.count
        i, h = query_of(call.options, rows, r)
        q = column(call.q, i, h, rows.b)
        for d in 1:D
            tile.queries[(r-1)*D+d] = call.scale * unsafe_load(q, d)
        end
    end
    width = length(scratch.scores) ÷ length(tile.top)  # a multiple of 16 numbers
    slots = Slots(scratch.scores, 1, width)
    GC.@preserve tile scratch begin
        scores, sums, lanes = pointer(scratch.scores), pointer(tile.sums), pointer(scratch.spare)
        queries = pointer(tile.queries)
        for block in key_blocks(tile.keys)
            count = length(block)
            k, v = column(call.k, first(block), rows.g, rows.b), column(call.v, first(block), rows.g, rows.b)
            few_score_block(V, queries, rows.count, D, k, call.k.apart, count, scores, width, lanes)
            plain = is_plain(call.options, block, tile.common)
            plain || alter!(slots, call.options, rows, tile.sight, block)
            hides = false
            for r in 1:rows.count
                new, total, factor, hid =
                    few_exponentials(V, at(scores, (r - 1) * width), count, tile.top[r], tile.total[r], lanes)
                tile.top[r], tile.total[r] = new, total
                hides |= hid
                factor == 1 && continue
                for d in (r-1)*Dv+1:r*Dv
                    tile.sums[d] *= factor
                end
            end
            if hides && !all_finite(call, rows, block)
                weigh_carefully!(Slots(tile.sums, 1, Dv), slots, call, rows, tile.sight, first(block), block)
            else
                few_weigh_block(V, scores, width, rows.count, v, call.v.apart, count, Dv, sums)
            end
        end
    end
    unpack_few(tile, call)
    return nothing
end

function unpack_few(tile::Tile{T}, call::SimdCall{T}) where {T}
    rows, Dv = tile.rows, call.Dv
    line = line_of(call, rows)
    for r in 1:rows.count
        _, h = query_of(call.options, rows, r)
        lse, factor = finish(tile, call, r, h)
        unsafe_store!(call.lse, lse, line + r)
        for d in 1:Dv
            unsafe_store!(call.output, tile.sums[(r-1)*Dv+d] * factor, (line + r - 1) * Dv + d)
        end
    end
    return nothing
end

# Rows of the output before the first one of the tile.
line_of(call::SimdCall, rows::BlockRows) =
    ((rows.b - 1) * call.Hkv + rows.g - 1) * call.options.G * call.options.Tq + rows.first
