# The inner loops of many queries.
#
# What it changes: the lanes of a register are *queries*. A tile is R = M · N queries wide (M registers of N
# lanes), everything is stored with the queries first, and K and V are read where they lie, one number at a
# time to all lanes. So no loop sums across lanes, nothing but Q is packed, and a query gets the same bits in
# whatever lane and tile it is. A tile of 4 registers of queries and 4 keys has 16 sums in flight, which hide
# the latency of a multiply-add, and loads 8 numbers for 16 of them.
#
# All of these take pointers. The caller holds what they point into by GC.@preserve, and vouches for the
# sizes that stand beside each function; every access below is within them.

# Values that are weighed together, few enough to stay in L1 beside their weights: 64 keys of 64 rows are 16
# KiB.
const VALUE_BLOCK = 64

# Registers of queries in a tile, and how many keys (or channels) go with them: at least 8 sums where there
# are two of them, for their latency.
const TILES = ((1, 8), (2, 4), (4, 4))

for (M, most) in TILES, K in (most, 1)
    @eval begin
        # The scores of M registers of queries and K keys, and the maximum of each query.
        # queries (R, D), k: K lines of D, `apart` elements from each other, scores (R, K), peaks (R)
        @inline function score_tile(
            ::Type{V}, ::Val{$M}, ::Val{$K}, queries, k, apart, D, scores, peaks
        ) where {V}
            Base.Cartesian.@nexprs $K n -> k_n = at(k, (n - 1) * apart)
            Base.Cartesian.@nexprs $K n -> Base.Cartesian.@nexprs $M m -> sum_n_m = zeros_of(V)
            for d in 0:D-1  # d·R + R <= D·R numbers of queries, d < D numbers of a line
                q = at(queries, d * $M * lanes_of(V))
                Base.Cartesian.@nexprs $M m -> q_m = vload(V, at(q, (m - 1) * lanes_of(V)))
                Base.Cartesian.@nexprs $K n -> begin
                    key = splat(V, unsafe_load(at(k_n, d)))
                    Base.Cartesian.@nexprs $M m -> sum_n_m = multiply_add(q_m, key, sum_n_m)
                end
            end
            Base.Cartesian.@nexprs $M m -> peak_m = vload(V, at(peaks, (m - 1) * lanes_of(V)))
            Base.Cartesian.@nexprs $K n -> Base.Cartesian.@nexprs $M m -> begin
                vstore(at(scores, ((n - 1) * $M + m - 1) * lanes_of(V)), sum_n_m)
                peak_m = larger(sum_n_m, peak_m)  # drops a NaN, which the exponentials find again
            end
            Base.Cartesian.@nexprs $M m -> vstore(at(peaks, (m - 1) * lanes_of(V)), peak_m)
            return nothing
        end

        # Adds to M registers of queries and K channels the values of some keys, weighed.
        # weights (R, keys), v: K numbers of each key, `apart` elements from each other, sums (R, K)
        @inline function weigh_tile(
            ::Type{V}, ::Val{$M}, ::Val{$K}, weights, v, apart, keys, sums
        ) where {V}
            Base.Cartesian.@nexprs $K n -> Base.Cartesian.@nexprs $M m ->
                sum_n_m = vload(V, at(sums, ((n - 1) * $M + m - 1) * lanes_of(V)))
            for j in 0:keys-1  # j·R + R <= keys·R weights, K numbers of line j of the values
                w = at(weights, j * $M * lanes_of(V))
                line = at(v, j * apart)
                Base.Cartesian.@nexprs $M m -> w_m = vload(V, at(w, (m - 1) * lanes_of(V)))
                Base.Cartesian.@nexprs $K n -> begin
                    value = splat(V, unsafe_load(at(line, n - 1)))
                    Base.Cartesian.@nexprs $M m -> sum_n_m = multiply_add(w_m, value, sum_n_m)
                end
            end
            Base.Cartesian.@nexprs $K n -> Base.Cartesian.@nexprs $M m ->
                vstore(at(sums, ((n - 1) * $M + m - 1) * lanes_of(V)), sum_n_m)
            return nothing
        end
    end
end

lanes_of(::Type{Register{N,T}}) where {N,T} = N

@inline keys_of(::Val{1}) = 8
@inline keys_of(::Val{M}) where {M} = 4

# scores (R, keys) = k' · queries, and peaks (R), the largest so far.
# queries (R, D), k: `keys` lines of D, `apart` elements from each other
function score_block(::Type{V}, ::Val{M}, queries, k, apart, D, keys, scores, peaks) where {V,M}
    R, K = M * lanes_of(V), keys_of(Val(M))
    j = 0
    while j + K <= keys
        line, out = at(k, j * apart), at(scores, j * R)
        score_tile(V, Val(M), Val(keys_of(Val(M))), queries, line, apart, D, out, peaks)
        j += K
    end
    while j < keys
        line, out = at(k, j * apart), at(scores, j * R)
        score_tile(V, Val(M), Val(1), queries, line, apart, D, out, peaks)
        j += 1
    end
    return nothing
end

# The largest score of each query: for scores that were changed after `score_block`.
# scores (R, keys), peaks (R)
function find_peaks(::Type{V}, ::Val{M}, scores, keys, peaks) where {V,M}
    for m in 0:M-1
        peak = vload(V, at(peaks, m * lanes_of(V)))
        for j in 0:keys-1
            peak = larger(vload(V, at(scores, (j * M + m) * lanes_of(V))), peak)
        end
        vstore(at(peaks, m * lanes_of(V)), peak)
    end
    return nothing
end

# Moves top (R) up to peaks (R), brings total (R), the sum of the exponentials, along, and multiplies sums
# (R, Dv) by the same factors. shifts (R) is what the next exponentials are relative to.
function raise_top(
    ::Type{V}, ::Val{M}, peaks, top, shifts, total, sums, Dv
) where {T,N,V<:Register{N,T},M}
    hidden = splat(V, T(-Inf))
    for m in 0:M-1
        here = m * N
        new, old = vload(V, at(peaks, here)), vload(V, at(top, here))
        # A query that has seen nothing is shifted by 0, as -Inf - -Inf would be NaN.
        shift = swap_equal(new, hidden, zeros_of(V))
        factor = exp_of(minus(old, shift))
        vstore(at(top, here), new)
        vstore(at(shifts, here), shift)
        vstore(at(total, here), times(vload(V, at(total, here)), factor))
        for d in 0:Dv-1
            place = at(sums, d * M * N + here)
            vstore(place, times(vload(V, place), factor))
        end
    end
    return nothing
end

for M in (1, 2, 4)
    @eval begin
        # Turns scores (R, keys) into exp(score - shift), and adds them to total (R). Whether a slot may be
        # hidden is the result: then the smallest difference of some query is -Inf; lows (R) is room for them.
        function exponentials(
            ::Type{V}, ::Val{$M}, scores, keys, shifts, total, lows
        ) where {N,T,V<:Register{N,T}}
            Base.Cartesian.@nexprs $M m -> shift_m = vload(V, at(shifts, (m - 1) * N))
            Base.Cartesian.@nexprs $M m -> sum_m = vload(V, at(total, (m - 1) * N))
            Base.Cartesian.@nexprs $M m -> low_m = zeros_of(V)
            for j in 0:keys-1  # j·R + R <= keys·R scores
                slots = at(scores, j * $M * N)
                Base.Cartesian.@nexprs $M m -> begin
                    x_m = minus(vload(V, at(slots, (m - 1) * N)), shift_m)
                    low_m = smaller(x_m, low_m)
                    e_m = exp_of(x_m)
                    vstore(at(slots, (m - 1) * N), e_m)
                    sum_m = plus(sum_m, e_m)
                end
            end
            Base.Cartesian.@nexprs $M m -> vstore(at(total, (m - 1) * N), sum_m)
            Base.Cartesian.@nexprs $M m -> vstore(at(lows, (m - 1) * N), low_m)
            for r in 0:$M*N-1
                unsafe_load(at(lows, r)) == T(-Inf) && return true
            end
            return false
        end
    end
end

# sums (R, Dv) += weights (R, keys) · v', with v: `keys` lines of Dv, `apart` elements from each other.
function weigh_block(::Type{V}, ::Val{M}, weights, v, apart, keys, Dv, sums) where {V,M}
    R, K = M * lanes_of(V), keys_of(Val(M))
    d = 0
    while d + K <= Dv
        weigh_tile(V, Val(M), Val(keys_of(Val(M))), weights, at(v, d), apart, keys, at(sums, d * R))
        d += K
    end
    while d < Dv
        weigh_tile(V, Val(M), Val(1), weights, at(v, d), apart, keys, at(sums, d * R))
        d += 1
    end
    return nothing
end
