# Layer normalisation: each row to mean 0 and variance 1, then a learned scale and shift.
#
#     output = (x - mean) / sqrt(variance + eps) · weight + bias,   both over the n numbers of the row
#
# A "row" is what the other languages call so: here it is a column x[:, r].
#
# Source: Ba et al., "Layer Normalization", 2016.

"""
    layer_norm(x, weight = nothing, bias = nothing; eps = 1e-5)

`x` `(n, ...)`, n >= 1, normalised over its first dimension: an `Array` of the same size. `weight`, `bias`:
`(n,)`, or `nothing`.

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function layer_norm(x, weight = nothing, bias = nothing; eps = 1e-5)
    @nospecialize weight bias eps
    return layer_norm_steps(x, weight, bias; eps = eps).output
end

"""
    layer_norm_steps(x, weight, bias; eps) -> (output, mean, inv_std)

[`layer_norm`](@ref) with `mean` and `inv_std` = 1 / sqrt(variance + eps), `(...)`; same errors.
"""
function layer_norm_steps(x, weight = nothing, bias = nothing; eps = 1e-5)
    @nospecialize weight bias eps
    check_norm("layer_norm", x, weight, bias, eps)
    return narrowed(layer_normed(widened(x), widened(weight), widened(bias), eps), eltype(x))
end

function layer_normed(x::AbstractArray{T}, weight, bias, eps) where {T}
    @nospecialize eps
    n = size(x, 1)
    output = Array{T}(undef, size(x))  # (n, ...)
    mean, inv_std = Array{T}(undef, Base.tail(size(x))), Array{T}(undef, Base.tail(size(x)))  # (...)
    epsilon = T(eps)::T
    for r in CartesianIndices(mean)
        # 1. mean: of the row
        total = zero(T)
        for d in 1:n
            total += x[d, r]
        end
        mean[r] = total / n

        # 2. variance: of the differences, in a second pass; a difference of two large sums would cancel
        total = zero(T)
        for d in 1:n
            total += (x[d, r] - mean[r])^2
        end
        inv_std[r] = 1 / sqrt(total / n + epsilon)

        # 3. normalise: to mean 0 and variance 1
        for d in 1:n
            output[d, r] = (x[d, r] - mean[r]) * inv_std[r]
        end

        # 4. scale and shift: each channel by its own
        for d in 1:n
            output[d, r] = shifted(weighted(output[d, r], weight, d), bias, d)
        end
    end
    return (output = output, mean = mean, inv_std = inv_std)
end

weighted(y, ::Nothing, d) = y
weighted(y, weight, d) = y * weight[d]
shifted(y, ::Nothing, d) = y
shifted(y, bias, d) = y + bias[d]
