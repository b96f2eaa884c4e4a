# RMS normalisation: each row to a mean square of 1, then a learned scale. There is no mean to subtract.
#
#     output = x / sqrt(mean(x²) + eps) · weight,   over the n numbers of the row
#
# A "row" is what the other languages call so: here it is a column x[:, r].
#
# Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

"""
    rms_norm(x, weight = nothing; eps = 1e-5)

`x` `(n, ...)`, n >= 1, normalised over its first dimension: an `Array` of the same size. `weight`: `(n,)`, or
`nothing`.

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function rms_norm(x, weight = nothing; eps = 1e-5)
    @nospecialize weight eps
    check_norm("rms_norm", x, weight, nothing, eps)
    return narrowed(rms_normed(widened(x), widened(weight), eps), eltype(x))
end

function rms_normed(x::AbstractArray{T,N}, weight, eps)::Array{T,N} where {T,N}
    @nospecialize eps
    n = size(x, 1)
    output = Array{T}(undef, size(x))  # (n, ...)
    epsilon = T(eps)::T
    for r in CartesianIndices(Base.tail(size(x)))
        # 1. mean square: of the row
        total = zero(T)
        for d in 1:n
            total += x[d, r]^2
        end

        # 2. normalise: to a mean square of 1
        root = sqrt(total / n + epsilon)
        for d in 1:n
            output[d, r] = x[d, r] / root
        end

        # 3. scale: each channel by its own
        for d in 1:n
            output[d, r] = weighted(output[d, r], weight, d)
        end
    end
    return output
end
