# A gated linear unit with the Swish as its gate.
#
#     output = a · sigmoid(alpha · a) · b
#
# Source: Shazeer, "GLU Variants Improve Transformer", 2020; Ramachandran et al., "Searching for Activation
# Functions", 2017 (Swish).

"""
    swiglu(a, b; alpha = 1)

The unit for each pair of elements of `a` and `b`, in an `Array` of their size.

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function swiglu(a, b; alpha = 1)
    @nospecialize alpha
    check_swiglu("swiglu", a, b, alpha)
    return narrowed(gated(widened(a), widened(b), alpha), eltype(a))
end

function gated(a::AbstractArray{T,N}, b, alpha)::Array{T,N} where {T,N}
    @nospecialize alpha
    slope = T(alpha)::T

    # 1. gate: smooth, from 0 to the number itself
    gate = map(x -> x / (1 + exp(-slope * x)), a)

    # 2. multiply: by what it lets through
    return convert(Array, map(*, gate, b))
end
