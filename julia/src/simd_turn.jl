# Transposes by registers: Q into the lanes, and the output out of them.
#
# What it changes: N lines of N numbers are turned by log2(N) rounds of shuffles, in which lanes that are a
# power of two apart change places, instead of one number at a time. The caller preserves what the pointers
# point into.

for (N, T) in REGISTERS
    V = Register{N,T}
    lines = [Symbol(:x, i) for i in 0:N-1]
    rounds = Expr[]
    for s in (2^e for e in 0:3 if 2^e < N), i in 0:N-1
        i & s == 0 || continue
        a, b = lines[i+1], lines[i+s+1]
        push!(rounds, :(($a, $b) = (low_half(Val($s), $a, $b), high_half(Val($s), $a, $b))))
    end
    @eval begin
        # Number l of line i goes to number i of line l. from: N lines of N, `from_apart` elements from each
        # other; to: the same, `to_apart`.
        @inline function turn_square(::Type{$V}, from, from_apart, to, to_apart)
            $((:($(lines[i]) = vload($V, at(from, $(i - 1) * from_apart))) for i in 1:N)...)
            $(rounds...)
            $((:(vstore(at(to, $(i - 1) * to_apart), $(lines[i]))) for i in 1:N)...)
            return nothing
        end
    end
end

# from: `lines` lines of `width` numbers; to: `width` lines of `lines` numbers.
function turn(::Type{V}, from, from_apart, to, to_apart, lines, width) where {N,V<:Register{N}}
    for i in 0:N:lines-1, l in 0:N:width-1
        source, target = at(from, i * from_apart + l), at(to, l * to_apart + i)
        if i + N <= lines && l + N <= width
            turn_square(V, source, from_apart, target, to_apart)
        else
            for m in 0:min(N, lines - i)-1, n in 0:min(N, width - l)-1
                unsafe_store!(at(target, n * to_apart + m), unsafe_load(at(source, m * from_apart + n)))
            end
        end
    end
    return nothing
end

# Multiplies x (R, n) by a number of each of R rows, a multiple of N.
function multiply_rows(::Type{V}, x, R, n, factors) where {N,V<:Register{N}}
    for r in 0:N:R-1
        factor = vload(V, at(factors, r))
        for d in 0:n-1
            place = at(x, d * R + r)
            vstore(place, times(vload(V, place), factor))
        end
    end
    return nothing
end

# Multiplies `count` numbers, a multiple of N, by one.
function multiply(::Type{V}, x, count, factor) where {N,V<:Register{N}}
    for n in 0:N:count-1
        vstore(at(x, n), times(vload(V, at(x, n)), splat(V, factor)))
    end
    return nothing
end

# Whether none of `count` numbers, a multiple of N, is NaN or infinite: 0 times such a one is NaN.
function all_numbers(::Type{V}, x, count) where {N,V<:Register{N}}
    zero, n = zeros_of(V), 0
    Base.Cartesian.@nexprs 4 i -> sum_i = zero
    while n + 4N <= count
        Base.Cartesian.@nexprs 4 i -> sum_i = multiply_add(vload(V, at(x, n + (i - 1) * N)), zero, sum_i)
        n += 4N
    end
    while n < count
        sum_1 = multiply_add(vload(V, at(x, n)), zero, sum_1)
        n += N
    end
    return !differ(plus(plus(sum_1, sum_2), plus(sum_3, sum_4)), zero)
end
