# Casts between the float types, and the edge at which half types enter and leave every op.
#
# A half type is only stored. An op widens what it is given to Float32, which is exact, does all of its work
# there, and rounds each result once; `widened` and `narrowed` are the two ends of that. Log-sum-exps stay
# Float32: they are handed to the next op, not looked at. Nothing in between is rounded, also not in an op
# that is made of others.
#
# Rounding goes to the nearest value, half to even, straight from the type that it comes from: Float64 to
# Float16 by way of Float32 would round twice, which moves a value just beside a tie.
#
# Sources: IEEE 754-2019, section 4.3.1 (rounding), 3.6 (binary16); Kalamkar et al., "A Study of BFLOAT16 for
# Deep Learning Training", 2019.

"""
    cast(x, T)

`x` as an `Array` of element type `T`: `Float16`, `BFloat16`, `Float32` or `Float64`. What is beyond the
largest finite value plus half a step becomes infinite, subnormal numbers are kept, NaN stays NaN.

Throws `AttentionError`: dtype_mismatch, unsupported for another `T`.
"""
function cast(x, T)
    check_cast("cast", x, T)
    return narrow(x, T)
end

# 1. widen: exact, since every half is also a Float32
widened(x) = x
widened(x::AbstractArray{<:Half}) = map(Float32, x)

# 2. narrow: once, element by element
narrow(x::AbstractArray, ::Type{T}) where {T} = convert(Array, map(value -> nearest(T, value), x))

nearest(::Type{T}, x) where {T} = T(x)
nearest(::Type{T}, x::T) where {T<:Half} = x
function nearest(::Type{T}, x) where {T<:Half}
    bits, lowest, infinite = layout(T)
    return reinterpret(T, half_code(Float64(x), bits, lowest, infinite))
end

# Bits of fraction, exponent of the smallest normal number, and the code of infinity.
layout(::Type{Float16}) = (10, -14, 0x7c00)
layout(::Type{BFloat16}) = (7, -126, 0x7f80)

function half_code(x::Float64, bits::Int, lowest::Int, infinite::UInt16)
    sign = signbit(x) ? 0x8000 : 0x0000
    isnan(x) && return sign | infinite | one(UInt16) << (bits - 1)
    isinf(x) && return sign | infinite
    return sign | UInt16(min(steps_from_zero(x, bits, lowest), infinite))
end

# Between two powers of two the values lie one step apart, so that their codes count those steps. The numbers
# below the smallest normal one have its step.
function steps_from_zero(x::Float64, bits::Int, lowest::Int)
    power = x == 0 ? lowest : max(exponent(x), lowest)
    return (power - lowest) << bits + round(Int, ldexp(abs(x), bits - power))
end

# The result of an op whose inputs have the element type T.
narrowed(result, ::Type) = result
narrowed(x::AbstractArray{Float32}, ::Type{T}) where {T<:Half} = narrow(x, T)
narrowed(result::Tuple, ::Type{T}) where {T<:Half} = map(x -> narrowed(x, T), result)
function narrowed(result::NamedTuple{names}, ::Type{T}) where {names,T<:Half}
    return NamedTuple{names}(map((name, x) -> name === :lse ? x : narrowed(x, T), names, values(result)))
end

# The type that an op computes in.
compute_type(::Type{T}) where {T} = T
compute_type(::Type{<:Half}) = Float32
