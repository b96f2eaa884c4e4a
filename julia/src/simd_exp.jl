# The exponential of numbers <= 0, for a register at a time, and for one number in plain loops.
#
# What it changes: `exp` of the library decides for every single number; this one is the same short chain of
# multiply-adds for all. x = n·ln2 + r with an integral n and |r| <= ln2/2, so exp(x) = 2^n · p(r).
#
# Error, in units of u = 2^-24 (Float32), relative; the bound of docs/fixtures.md grants 8:
#
#     p(r) instead of exp(r)    1.6   the largest |p(r)/exp(r) - 1|, for which p was fitted on |r| <= 0.3466
#     r                         0.4   n·(high part of ln2) is exact, then two roundings of numbers <= 0.35
#     the sum before the last   0.5   one rounding of a number <= 1.2, multiplied by |r|
#     the last sum              1.5   one rounding of a number >= 0.7
#
# which is 4.0; Float64 has the Taylor sum up to r^13/13!, whose rest is below 0.1 u. exp(0) is exactly 1.
# Below the smallest normal number the result is 0 or rounded coarsely, which the bound grants as well; -Inf
# gives exactly 0, and NaN stays NaN.
#
# Source: Cody and Waite, "Software Manual for the Elementary Functions", 1980, chapter 6.

struct ExpTable{T,K}
    lowest::T  # what is below counts as this, whose n makes the exponent's bits 0, and so the result
    log2_e::T
    # 1.5 · 2^(bits of the fraction), which a sum loses its own fraction to, and the bias of the exponent
    round::T
    ln2_high::T
    ln2_low::T
    coefficients::NTuple{K,T}  # of r^K, …, r
end

# The first part of ln2 has so few bits that its product with n is exact.
const EXP_32 = ExpTable{Float32,5}(
    -88.0f0,
    1.442695f0,
    12582912.0f0 + 127.0f0,
    0.693359375f0,
    -2.1219444f-4,
    (0.008290308527648449, 0.041897963732481, 0.1666763722896576, 0.4999915063381195, 0.9999997019767761),
)
const EXP_64 = ExpTable{Float64,13}(
    -709.2,
    1.4426950408889634,
    6755399441055744.0 + 1023.0,
    0.6931471803691238,
    1.9082149292705877e-10,
    ntuple(k -> 1 / factorial(14 - k), 13),
)

@inline exp_table(::Type{Float32}) = EXP_32
@inline exp_table(::Type{Float64}) = EXP_64

@inline function exp_of(x::V) where {T,N,V<:Register{N,T}}
    table = exp_table(T)
    x = larger(splat(V, table.lowest), x)  # in this order a NaN stays
    shifted = multiply_add(x, splat(V, table.log2_e), splat(V, table.round))
    n = minus(shifted, splat(V, table.round))
    r = multiply_add(n, splat(V, -table.ln2_high), x)
    r = multiply_add(n, splat(V, -table.ln2_low), r)
    return times(horner(r, table.coefficients...), as_exponent(shifted))
end

# The same for one number, without a branch, so that a plain loop over it becomes vector code.
@inline function exp_of(x::T) where {T<:Union{Float32,Float64}}
    table = exp_table(T)
    x = ifelse(x < table.lowest, table.lowest, x)  # a NaN stays
    shifted = muladd(x, table.log2_e, table.round)
    n = shifted - table.round
    r = muladd(n, -table.ln2_low, muladd(n, -table.ln2_high, x))
    return horner(r, table.coefficients...) * as_exponent(shifted)
end

@inline as_exponent(x::Float32) = reinterpret(Float32, reinterpret(UInt32, x) << 23)
@inline as_exponent(x::Float64) = reinterpret(Float64, reinterpret(UInt64, x) << 52)

@inline horner(r::T, first::T, rest...) where {T<:Union{Float32,Float64}} = horner_from(r, first, rest...)
@inline horner_from(r::T, sum::T) where {T<:Union{Float32,Float64}} = muladd(sum, r, one(T))
@inline horner_from(r::T, sum::T, next::T, rest...) where {T<:Union{Float32,Float64}} =
    horner_from(r, muladd(sum, r, next), rest...)

@inline horner(r::V, first, rest...) where {T,N,V<:Register{N,T}} = horner_from(r, splat(V, first), rest...)
@inline horner_from(r::V, sum::V) where {T,N,V<:Register{N,T}} = multiply_add(sum, r, splat(V, one(T)))
@inline horner_from(r::V, sum::V, next, rest...) where {T,N,V<:Register{N,T}} =
    horner_from(r, multiply_add(sum, r, splat(V, next)), rest...)
