# Softmax over the first dimension, with its log-sum-exp.
#
#     weights[j] = exp(x[j] - lse),   lse = log(sum(exp(x[j]) for j))
#
# A slot of -Inf is *hidden*: its weight is exactly 0. A row with nothing but hidden slots has weights 0 and
# lse -Inf, never NaN: an empty sum is 0, and only then does a later merge of partial results ignore the row.
# NaN and +Inf make their row NaN. A "row" is what the other languages call so: here it is a column x[:, r].
#
# Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, section 2 ("safe
# softmax").

"""
    softmax(x)

Softmax over the first dimension of `x`, `(n, ...)` with `n >= 0`; an `Array` of the same size and element
type.

Throws `AttentionError`: shape_mismatch for rank 0, dtype_mismatch.
"""
softmax(x) = softmax_lse(x)[1]

"""
    softmax_lse(x, sink = nothing) -> (weights, lse)

Softmax and log-sum-exp of the first dimension: `weights` is `(n, ...)` as `x`, `lse` is `(...)`, natural
logarithm. The lse of a half type is `Float32`.

`sink`: an array that broadcasts to `(...)`, a logit that joins the sum of its row and has no slot of its own.

Throws `AttentionError`: shape_mismatch, dtype_mismatch.
"""
function softmax_lse(x, sink = nothing)
    check_softmax(x, sink)
    weights, lse = weights_and_lse(widened(x), widened(sink))
    return narrowed(weights, eltype(x)), lse
end

function weights_and_lse(x, sink)
    weights = Array{eltype(x)}(undef, size(x))  # (n, ...)
    lse = Array{eltype(x)}(undef, Base.tail(size(x)))  # (...)
    set_sinks!(lse, sink)
    return softmax_lse!(weights, lse, x)
end

# No sink is a sink of -Inf: it is never the maximum, and its exponential adds 0.
set_sinks!(lse, ::Nothing) = fill!(lse, -Inf)
set_sinks!(lse, sink) = lse .= sink

# In place. `lse` comes in with the sink of each row; neither result may share memory with `x`.
function softmax_lse!(weights::AbstractArray{T}, lse::AbstractArray{T}, x::AbstractArray{T}) where {T}
    n = size(x, 1)
    for r in CartesianIndices(lse)
        sink = lse[r]

        # 1. maximum: the sink takes part; a row with nothing in it is shifted by 0, since -Inf - -Inf is NaN
        top = sink
        for j in 1:n
            top = max(top, x[j, r])
        end
        shift = top == -Inf ? zero(T) : top

        # 2. exponentials: at most 1, so they cannot overflow
        for j in 1:n
            weights[j, r] = exp(x[j, r] - shift)
        end

        # 3. sum: at least 1, except in a row with nothing in it; in order, so that hidden slots change no bit
        total = zero(T)
        for j in 1:n
            total += weights[j, r]
        end
        total += exp(sink - shift)
        total = total == 0 ? one(T) : total

        # 4. normalise: by selection, so that a hidden slot is 0 even in a row of NaN
        for j in 1:n
            weights[j, r] = x[j, r] == -Inf ? zero(T) : weights[j, r] / total
        end

        # 5. log-sum-exp: -Inf for a row with nothing in it
        lse[r] = top + log(total)
    end
    return weights, lse
end
