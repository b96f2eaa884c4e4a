# Merging two states of softmax attention: the same queries over two disjoint sets of keys.
#
#     output = (a · e^a_lse + b · e^b_lse) / (e^a_lse + e^b_lse),   lse = log(e^a_lse + e^b_lse)
#
# A state of lse -Inf has seen no key. It is not read, and changes no bit of the other. The function is called
# `merge_states` here: `merge` is Julia's own, for dictionaries.
#
# Source: Rabe and Staats, "Self-attention Does Not Need O(n²) Memory", 2021; FlashInfer, 2024 (states and
# their merge).

"""
    merge_states(a_output, a_lse, b_output, b_lse) -> (output, lse)

The state of both sets of keys. `output` is `(Dv, ...)`, `lse` is `(...)`, natural logarithm, `Float32` for
outputs of a half type. NaN or +Inf in an lse makes its query NaN.

Throws `AttentionError`: shape_mismatch, dtype_mismatch.
"""
function merge_states(a_output, a_lse, b_output, b_lse)
    check_merge("merge", a_output, a_lse, b_output, b_lse)
    return narrowed(merged(widened(a_output), a_lse, widened(b_output), b_lse), eltype(a_output))
end

function merged(a_output::AbstractArray{T}, a_lse, b_output, b_lse) where {T}
    output = zeros(T, size(a_output))  # (Dv, ...)
    lse = Array{T}(undef, size(a_lse))  # (...)
    for r in CartesianIndices(lse)
        # 1. maximum: two empty states are shifted by 0
        highest = max(a_lse[r], b_lse[r])
        shift = highest == -Inf ? zero(T) : highest

        # 2. weights: the larger of the two is 1
        a_weight, b_weight = exp(a_lse[r] - shift), exp(b_lse[r] - shift)
        total = a_weight + b_weight
        total = total == 0 ? one(T) : total

        # 3. output: by selection, so that nothing of an empty state is read
        for d in 1:size(output, 1)
            sum = a_lse[r] == -Inf ? zero(T) : a_weight * a_output[d, r]
            sum += b_lse[r] == -Inf ? zero(T) : b_weight * b_output[d, r]
            output[d, r] = sum / total
        end

        # 4. log-sum-exp: -Inf for two empty states
        lse[r] = highest + log(total)
    end
    return (output = output, lse = lse)
end
