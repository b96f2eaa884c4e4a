# The inner loops of few rows, as in decode: one query of each of the G heads of a KV head.
#
# What it changes: with a query in each lane most lanes would idle, and memory is what the time goes to. Here
# the lanes are *channels*, and each key and value is loaded once for the whole group: 4 keys and 4 heads
# have 16 sums in flight, which are turned and added up in registers at the end, all 16 together. What comes
# later is asked for in time.
#
# As in simd_kernel.jl the caller preserves what the pointers point into, and vouches for the sizes.

# Rows that are asked for before they are read.
const ROWS_AHEAD = 16

for (N, T) in REGISTERS
    V = Register{N,T}
    sums = [Symbol(:x, i) for i in 0:N-1]
    folds = Expr[]
    for s in (2^e for e in 0:3 if 2^e < N), i in 0:2s:N-1
        a, b = sums[i+1], sums[i+s+1]
        push!(folds, :($a = plus(low_half(Val($s), $a, $b), high_half(Val($s), $a, $b))))
    end
    # Lane l of the result is the sum of all lanes of argument l.
    @eval @inline function add_up($((:($x::$V) for x in sums)...))
        $(folds...)
        return x0
    end

    H = N ÷ min(N, 4)
    for (keys, heads) in unique(((N ÷ H, H), (N, 1)))
        chunk = Register{keys,T}
        @eval begin
            # The scores of `heads` rows and `keys` keys: their product is the number of lanes.
            # queries: `heads` lines of D; k: `keys` lines of D, `apart` elements from each other; scores:
            # `keys` numbers of each of `heads` lines that are `width` apart; lanes: N numbers of no meaning
            @inline function few_scores(::Type{$V}, ::Val{$heads}, queries, D, k, apart, scores, width, lanes)
                Base.Cartesian.@nexprs $keys n -> k_n = at(k, (n - 1) * apart)
                Base.Cartesian.@nexprs $heads h -> Base.Cartesian.@nexprs $keys n -> sum_n_h = zeros_of($V)
                whole = D - D % $N
                for d in 0:$N:whole-1  # d + N <= D numbers of each line
                    Base.Cartesian.@nexprs $keys n -> begin
                        key_n = vload($V, at(k_n, d))
                        prefetch(at(k_n, d + ROWS_AHEAD * apart))
                    end
                    Base.Cartesian.@nexprs $heads h -> begin
                        query = vload($V, at(queries, (h - 1) * D + d))
                        Base.Cartesian.@nexprs $keys n -> sum_n_h = multiply_add(query, key_n, sum_n_h)
                    end
                end
                vstore(lanes, add_up($((Symbol(:sum_, n, :_, h) for h in 1:heads for n in 1:keys)...)))
                Base.Cartesian.@nexprs $heads h -> begin
                    for d in whole:D-1
                        Base.Cartesian.@nexprs $keys n -> begin
                            query = unsafe_load(at(queries, (h - 1) * D + d))
                            here = at(lanes, (h - 1) * $keys + n - 1)
                            unsafe_store!(here, fma(query, unsafe_load(at(k_n, d)), unsafe_load(here)))
                        end
                    end
                    vstore(at(scores, (h - 1) * width), vload($chunk, at(lanes, (h - 1) * $keys)))
                end
                return nothing
            end
        end
    end
    # How many rows the wider kernel takes.
    @eval @inline heads_of(::Type{$V}) = $H
end

# scores (keys, rows), `width` apart, of all rows: queries (D, rows), k: `keys` lines of D, `apart` from each
# other.
function few_score_block(
    ::Type{V}, queries, rows, D, k, apart, keys, scores, width, lanes
) where {N,T,V<:Register{N,T}}
    j = 0
    while keys - j >= N
        few_score_keys(V, queries, rows, D, at(k, j * apart), apart, at(scores, j), width, lanes)
        j += N
    end
    j == keys && return nothing
    if keys >= N  # the last N keys once more: a key has the same score wherever it stands
        j = keys - N
        few_score_keys(V, queries, rows, D, at(k, j * apart), apart, at(scores, j), width, lanes)
        return nothing
    end
    for r in 0:rows-1, m in j:keys-1
        score = zero(T)
        for d in 0:D-1
            score = fma(unsafe_load(at(queries, r * D + d)), unsafe_load(at(k, m * apart + d)), score)
        end
        unsafe_store!(at(scores, r * width + m), score)
    end
    return nothing
end

# N keys and all rows.
@inline function few_score_keys(
    ::Type{V}, queries, rows, D, k, apart, scores, width, lanes
) where {N,T,V<:Register{N,T}}
    H = heads_of(V)
    r = 0
    while rows - r >= H && H > 1
        q, s = at(queries, r * D), at(scores, r * width)
        for m in 0:N÷H:N-1
            few_scores(V, Val(heads_of(V)), q, D, at(k, m * apart), apart, at(s, m), width, lanes)
        end
        r += H
    end
    while r < rows
        few_scores(V, Val(1), at(queries, r * D), D, k, apart, at(scores, r * width), width, lanes)
        r += 1
    end
    return nothing
end

# As `exponentials`, for one row of scores with room for a whole number of registers, of which `keys` count;
# what is beyond becomes 0. Gives the new top and total, the factor, and whether a slot may be hidden.
function few_exponentials(::Type{V}, scores, keys, top, total, lanes) where {N,T,V<:Register{N,T}}
    padded = cld(keys, N) * N
    first = unsafe_load(scores)  # changes no maximum
    for m in keys:padded-1
        unsafe_store!(at(scores, m), first)
    end
    peak = splat(V, top)
    for m in 0:N:padded-1  # m + N <= padded, for which there is room
        peak = larger(vload(V, at(scores, m)), peak)
    end
    vstore(lanes, peak)
    new = top
    for lane in 0:N-1
        x = unsafe_load(at(lanes, lane))
        new = x > new ? x : new
    end
    shift = new == T(-Inf) ? zero(T) : new
    vstore(lanes, exp_of(splat(V, top - shift)))
    factor = unsafe_load(lanes)
    shifts, low, sum = splat(V, shift), zeros_of(V), zeros_of(V)
    for m in 0:N:keys-N
        x = minus(vload(V, at(scores, m)), shifts)
        low = smaller(x, low)
        e = exp_of(x)
        vstore(at(scores, m), e)
        sum = plus(sum, e)
    end
    if padded > keys
        x = minus(vload(V, at(scores, padded - N)), shifts)
        low = smaller(x, low)
        vstore(at(scores, padded - N), exp_of(x))
        for m in keys:padded-1
            unsafe_store!(at(scores, m), zero(T))
        end
        sum = plus(sum, vload(V, at(scores, padded - N)))
    end
    vstore(lanes, low)
    hides = false
    total *= factor
    for lane in 0:N-1
        hides |= unsafe_load(at(lanes, lane)) == T(-Inf)
    end
    vstore(lanes, sum)
    for lane in 0:N-1
        total += unsafe_load(at(lanes, lane))
    end
    return new, total, factor, hides
end

for C in (1, 2, 4), H in (1, 4)
    @eval begin
        # Adds to C registers of channels of H rows the values of some keys, weighed.
        # weights: `keys` numbers of each of H lines `width` apart; v: C registers of each of `keys` lines
        # `apart` elements from each other; sums: C registers of each of H lines `room` apart
        @inline function few_weigh(
            ::Type{V}, ::Val{$C}, ::Val{$H}, weights, width, v, apart, keys, sums, room
        ) where {V}
            Base.Cartesian.@nexprs $H h -> Base.Cartesian.@nexprs $C c ->
                sum_c_h = vload(V, at(sums, (h - 1) * room + (c - 1) * lanes_of(V)))
            for j in 0:keys-1
                line = at(v, j * apart)
                Base.Cartesian.@nexprs $C c -> begin
                    value_c = vload(V, at(line, (c - 1) * lanes_of(V)))
                    prefetch(at(line, (c - 1) * lanes_of(V) + ROWS_AHEAD * apart))
                end
                Base.Cartesian.@nexprs $H h -> begin
                    weight = splat(V, unsafe_load(at(weights, (h - 1) * width + j)))
                    Base.Cartesian.@nexprs $C c -> sum_c_h = multiply_add(weight, value_c, sum_c_h)
                end
            end
            Base.Cartesian.@nexprs $H h -> Base.Cartesian.@nexprs $C c ->
                vstore(at(sums, (h - 1) * room + (c - 1) * lanes_of(V)), sum_c_h)
            return nothing
        end
    end
end

# Keys whose values are weighed before the next ones: 32 lines of 128 Float32 are 16 KiB, a third of L1.
const FEW_BLOCK = 32

# sums (Dv, rows) += the values (v: `keys` lines of Dv, `apart` from each other), weighed by weights (keys,
# rows).
function few_weigh_block(
    ::Type{V}, weights, width, rows, v, apart, keys, Dv, sums
) where {N,T,V<:Register{N,T}}
    for start in 0:FEW_BLOCK:keys-1
        count = min(FEW_BLOCK, keys - start)
        w, lines = at(weights, start), at(v, start * apart)
        d = 0
        while Dv - d >= N
            C = Dv - d >= 4N && sizeof(V) == 64 ? 4 : Dv - d >= 2N ? 2 : 1
            line, sum = at(lines, d), at(sums, d)
            if C == 4
                few_weigh_rows(V, Val(4), w, width, rows, line, apart, count, sum, Dv)
            elseif C == 2
                few_weigh_rows(V, Val(2), w, width, rows, line, apart, count, sum, Dv)
            else
                few_weigh_rows(V, Val(1), w, width, rows, line, apart, count, sum, Dv)
            end
            d += C * N
        end
        for r in 0:rows-1, c in d:Dv-1
            here = at(sums, r * Dv + c)
            sum = unsafe_load(here)
            for j in 0:count-1
                sum = fma(unsafe_load(at(w, r * width + j)), unsafe_load(at(lines, j * apart + c)), sum)
            end
            unsafe_store!(here, sum)
        end
    end
    return nothing
end

@inline function few_weigh_rows(::Type{V}, ::Val{C}, w, width, rows, v, apart, keys, sums, room) where {V,C}
    r = 0
    while rows - r >= 4
        few_weigh(V, Val(C), Val(4), at(w, r * width), width, v, apart, keys, at(sums, r * room), room)
        r += 4
    end
    while r < rows
        few_weigh(V, Val(C), Val(1), at(w, r * width), width, v, apart, keys, at(sums, r * room), room)
        r += 1
    end
    return nothing
end
