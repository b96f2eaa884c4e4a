# The Gaussian error linear unit: x times the probability that a normal number is below it.
#
#     exact   x/2 (1 + erf(x / sqrt(2)))
#     tanh    x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))
#
# Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

"""
    gelu(x; approximate = "none")

The unit for each element of `x`, in an `Array` of the same size. `approximate`: "none", or "tanh" for the
form that needs no error function.

Throws `AttentionError`: dtype_mismatch, invalid_config.
"""
function gelu(x; approximate = "none")
    @nospecialize approximate
    check_float("gelu", "x", x)
    check_choice("gelu", "approximate", approximate, ("none", "tanh"))
    return narrowed(activated(widened(x), approximate == "tanh" ? gelu_tanh : gelu_exact), eltype(x))
end

activated(x, unit) = convert(Array, map(unit, x))

function gelu_exact(x::T) where {T}
    # 1. exact: the error function in Float64, rounded once
    return x / 2 * (1 + T(erf(Float64(x) / sqrt(2.0))))
end

function gelu_tanh(x::T) where {T}
    # 2. tanh: near the exact one to about three digits
    return x / 2 * (1 + tanh(T(sqrt(2 / π)) * (x + T(0.044715) * x^3)))
end

# Julia's own C library of mathematics has it; the standard library only does not say so.
erf(x::Float64) = ccall((:erf, "libopenlibm"), Float64, (Float64,), x)
