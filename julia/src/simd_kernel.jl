# The inner loops of many queries.
#
# What it changes: the lanes of a register are *queries*. A tile is R = M · N queries wide (M registers of N
# lanes), everything is stored with the queries first, and K and V are read where they lie, one number at a
# time to all lanes. So no loop sums across lanes, nothing but Q is packed, and a query gets the same bits in
# whatever lane and tile it is. A tile of 4 registers of queries and 4 keys has 16 sums in flight, which hide
# the latency of a multiply-add, and loads 8 numbers for 16 of them.
#
# A kernel takes M registers out of a tile that is R queries wide: those that see the keys (simd_edge.jl).
#
# All of these take pointers. The caller holds what they point into by GC.@preserve, and vouches for the
# sizes that stand beside each function; every access below is within them.

# Values that are weighed together, few enough that their weights stay in L1: 96 keys of 64 rows are 24 KiB.
# Half as many mean more sums that come and go, and were 2 % slower at 2048 keys.
const VALUE_BLOCK = 96

# Registers of queries in a tile, and how many keys (or channels) go with them: at least 8 sums where there
# are two of them, for their latency.
const TILES = ((1, 8), (2, 4), (3, 4), (4, 4))

for (M, most) in TILES, K in (most, 1)
    @eval begin
        # The scores of M registers of queries and K keys, and the maximum of each query.
        # queries (R, D), k: K lines of D, `apart` elements from each other, scores (R, K), peaks (R)
        @inline function score_tile(
            ::Type{V}, ::Val{$M}, ::Val{$K}, queries, R, k, apart, D, scores, peaks
        ) where {V}
            Base.Cartesian.@nexprs $K n -> k_n = at(k, (n - 1) * apart)
            Base.Cartesian.@nexprs $K n -> Base.Cartesian.@nexprs $M m -> sum_n_m = zeros_of(V)
            for d in 0:D-1  # of R numbers of each of D lines of queries, and D numbers of a key
                q = at(queries, d * R)
                Base.Cartesian.@nexprs $M m -> q_m = vload(V, at(q, (m - 1) * lanes_of(V)))
                Base.Cartesian.@nexprs $K n -> begin
                    key = splat(V, unsafe_load(at(k_n, d)))
                    Base.Cartesian.@nexprs $M m -> sum_n_m = multiply_add(q_m, key, sum_n_m)
                end
            end
            Base.Cartesian.@nexprs $M m -> peak_m = vload(V, at(peaks, (m - 1) * lanes_of(V)))
            Base.Cartesian.@nexprs $K n -> Base.Cartesian.@nexprs $M m -> begin
                vstore(at(scores, (n - 1) * R + (m - 1) * lanes_of(V)), sum_n_m)
                peak_m = larger(sum_n_m, peak_m)  # drops a NaN, which the exponentials find again
            end
            Base.Cartesian.@nexprs $M m -> vstore(at(peaks, (m - 1) * lanes_of(V)), peak_m)
            return nothing
        end

        # Adds to M registers of queries and K channels the values of some keys, weighed.
        # weights (R, keys), v: K numbers of each key, `apart` elements from each other, sums (R, K)
        @inline function weigh_tile(
            ::Type{V}, ::Val{$M}, ::Val{$K}, weights, R, v, apart, keys, sums
        ) where {V}
            Base.Cartesian.@nexprs $K n -> Base.Cartesian.@nexprs $M m ->
                sum_n_m = vload(V, at(sums, (n - 1) * R + (m - 1) * lanes_of(V)))
            for j in 0:keys-1  # of R weights of each of the keys, and K numbers of its value
                w = at(weights, j * R)
                line = at(v, j * apart)
                Base.Cartesian.@nexprs $M m -> w_m = vload(V, at(w, (m - 1) * lanes_of(V)))
                Base.Cartesian.@nexprs $K n -> begin
                    value = splat(V, unsafe_load(at(line, n - 1)))
                    Base.Cartesian.@nexprs $M m -> sum_n_m = multiply_add(w_m, value, sum_n_m)
                end
            end
            Base.Cartesian.@nexprs $K n -> Base.Cartesian.@nexprs $M m ->
                vstore(at(sums, (n - 1) * R + (m - 1) * lanes_of(V)), sum_n_m)
            return nothing
        end
    end
end

lanes_of(::Type{Register{N,T}}) where {N,T} = N

@inline keys_of(::Val{1}) = 8
@inline keys_of(::Val{M}) where {M} = 4

# Calls f for M registers, of which a tile has at most `most_registers`.
@inline function with_registers(f::F, ::Type{V}, M::Int, arguments::Vararg{Any,K}) where {F,V,K}
    M == 1 && return f(V, Val(1), arguments...)
    (M == 2 || most_registers(V) == 2) && return f(V, Val(2), arguments...)
    M == 3 && return f(V, Val(3), arguments...)
    return f(V, Val(4), arguments...)
end

# scores (R, keys) = k' · queries, and peaks (R), the largest so far.
# queries (R, D), k: `keys` lines of D, `apart` elements from each other
function score_block(::Type{V}, ::Val{M}, queries, R, k, apart, D, keys, scores, peaks) where {V,M}
    K = keys_of(Val(M))
    j = 0
    while j + K <= keys
        line, out = at(k, j * apart), at(scores, j * R)
        score_tile(V, Val(M), Val(keys_of(Val(M))), queries, R, line, apart, D, out, peaks)
        j += K
    end
    while j < keys
        line, out = at(k, j * apart), at(scores, j * R)
        score_tile(V, Val(M), Val(1), queries, R, line, apart, D, out, peaks)
        j += 1
    end
    return nothing
end

# The largest score of each query, where scores were changed after `score_block`.
# scores (R, keys), peaks (R)
function find_peaks(::Type{V}, ::Val{M}, scores, R, keys, peaks) where {N,V<:Register{N},M}
    for m in 0:M-1
        peak = vload(V, at(peaks, m * N))
        for j in 0:keys-1
            peak = larger(vload(V, at(scores, j * R + m * N)), peak)
        end
        vstore(at(peaks, m * N), peak)
    end
    return nothing
end

# Hides the scores of keys that a query does not see by its position, and finds the peaks of the others. The
# keys count from `from`, as starts (R) and stops (R) do, the first and last that a query sees.
# scores (R, keys), peaks (R)
function hide_keys(
    ::Type{V}, ::Val{M}, scores, R, from, keys, starts, stops, peaks
) where {T,N,V<:Register{N,T},M}
    hidden = splat(V, T(-Inf))
    for m in 0:M-1
        start, stop = vload(V, at(starts, m * N)), vload(V, at(stops, m * N))
        peak = vload(V, at(peaks, m * N))
        for j in 0:keys-1
            place = at(scores, j * R + m * N)
            key = splat(V, T(from + j))
            score = where_ordered(start, key, where_ordered(key, stop, vload(V, place), hidden), hidden)
            vstore(place, score)
            peak = larger(score, peak)
        end
        vstore(at(peaks, m * N), peak)
    end
    return nothing
end

# Moves top (R) up to peaks (R), brings total (R), the sum of the exponentials, along, and multiplies sums
# (R, Dv) by the same factors. shifts (R) is what the next exponentials are relative to.
function raise_top(::Type{V}, R, peaks, top, shifts, total, sums, Dv) where {T,N,V<:Register{N,T}}
    hidden = splat(V, T(-Inf))
    for here in 0:N:R-1
        new, old = vload(V, at(peaks, here)), vload(V, at(top, here))
        # A query that has seen nothing is shifted by 0, as -Inf - -Inf would be NaN.
        shift = swap_equal(new, hidden, zeros_of(V))
        vstore(at(shifts, here), shift)
        differ(new, old) || continue
        factor = exp_of(minus(old, shift))
        vstore(at(top, here), new)
        vstore(at(total, here), times(vload(V, at(total, here)), factor))
        for d in 0:Dv-1
            place = at(sums, d * R + here)
            vstore(place, times(vload(V, place), factor))
        end
    end
    return nothing
end

for (M, _) in TILES
    @eval begin
        # Turns scores (R, keys) into exp(score - shift), and adds them to total (R).
        function exponentials(
            ::Type{V}, ::Val{$M}, scores, R, keys, shifts, total
        ) where {N,T,V<:Register{N,T}}
            Base.Cartesian.@nexprs $M m -> shift_m = vload(V, at(shifts, (m - 1) * N))
            Base.Cartesian.@nexprs $M m -> sum_m = vload(V, at(total, (m - 1) * N))
            for j in 0:keys-1
                slots = at(scores, j * R)
                Base.Cartesian.@nexprs $M m -> begin
                    e_m = exp_of(minus(vload(V, at(slots, (m - 1) * N)), shift_m))
                    vstore(at(slots, (m - 1) * N), e_m)
                    sum_m = plus(sum_m, e_m)
                end
            end
            Base.Cartesian.@nexprs $M m -> vstore(at(total, (m - 1) * N), sum_m)
            return nothing
        end
    end
end

# sums (R, Dv) += weights (R, keys) · v', with v: `keys` lines of Dv, `apart` elements from each other.
function weigh_block(::Type{V}, ::Val{M}, weights, R, v, apart, keys, Dv, sums) where {V,M}
    K = keys_of(Val(M))
    d = 0
    while d + K <= Dv
        weigh_tile(V, Val(M), Val(keys_of(Val(M))), weights, R, at(v, d), apart, keys, at(sums, d * R))
        d += K
    end
    while d < Dv
        weigh_tile(V, Val(M), Val(1), weights, R, at(v, d), apart, keys, at(sums, d * R))
        d += 1
    end
    return nothing
end
