"""
    BFloat16(x)

The upper half of a `Float32`: one sign bit, eight of exponent, seven of fraction. It stores numbers and has
no arithmetic; `Float32(x)` and `Float64(x)` are exact, `BFloat16(x)` rounds half to even.
"""
primitive type BFloat16 <: AbstractFloat 16 end

BFloat16(x::Union{Float16,Float32,Float64,Integer}) = nearest(BFloat16, x)
Base.Float32(x::BFloat16) = reinterpret(Float32, UInt32(reinterpret(UInt16, x)) << 16)
Base.Float64(x::BFloat16) = Float64(Float32(x))
Base.promote_rule(::Type{BFloat16}, ::Type{T}) where {T<:Union{Float32,Float64}} = T

Base.:(==)(x::BFloat16, y::BFloat16) = Float32(x) == Float32(y)
Base.:<(x::BFloat16, y::BFloat16) = Float32(x) < Float32(y)
Base.:<=(x::BFloat16, y::BFloat16) = Float32(x) <= Float32(y)
Base.isnan(x::BFloat16) = isnan(Float32(x))
Base.isinf(x::BFloat16) = isinf(Float32(x))
Base.isfinite(x::BFloat16) = isfinite(Float32(x))
Base.signbit(x::BFloat16) = signbit(Float32(x))
Base.show(io::IO, x::BFloat16) = print(io, "BFloat16(", Float32(x), ")")

# The two types that are stored but not computed in.
const Half = Union{Float16,BFloat16}
