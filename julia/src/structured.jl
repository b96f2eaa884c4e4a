# Structured self-attention: a sequence of any length becomes R weighted means of its rows.
#
#     A = softmax(w_2' tanh(w_1' H)) over the positions,   M = H A,   penalty = Σ (A' A - I)²
#
# The penalty is 0 when every mean looks at one position, and no two at the same.
#
# Letters: B batch, T length, C width, A of the hidden layer, R means.
#
# Source: Lin et al., "A Structured Self-attentive Sentence Embedding", 2017, section 2.

"""
    structured(h, w_1, w_2; kv_lengths = nothing)

The means of `h` `(C, T, B)` under `w_1` `(C, A)` and `w_2` `(A, R)`: an `Array` `(C, R, B)`.

`kv_lengths`: `Int64`, `(B,)`, how many positions of each row exist.

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
structured(h, w_1, w_2; kv_lengths = nothing) = structured_steps(h, w_1, w_2; kv_lengths = kv_lengths).output

"""
    structured_steps(h, w_1, w_2; kv_lengths) -> (output, weights, penalty)

[`structured`](@ref) with its weights, `(T, R, B)`, and the penalty, `(B,)`; same errors.
"""
function structured_steps(h, w_1, w_2; kv_lengths = nothing)
    @nospecialize kv_lengths
    check_structured("structured", h, w_1, w_2, kv_lengths)
    ends = per_row(kv_lengths, size(h, 2), size(h, 3))::Vector{Int}  # (B,)
    return narrowed(means(widened(h), widened(w_1), widened(w_2), ends), eltype(h))
end

function means(h::AbstractArray{T,3}, w_1, w_2, ends::Vector{Int}) where {T}
    B, R = size(h, 3), size(w_2, 2)

    # 1. hidden: one layer on every position
    hidden = tanh.(linear(w_1, h, nothing))  # (A, T, B)

    # 2. scores: R for every position; those beyond the end of the row are selected out
    logits = hide_ends!(permutedims(linear(w_2, hidden, nothing), (2, 1, 3)), ends)  # (T, R, B)

    # 3. softmax: over the positions
    weights, _ = weights_and_lse(logits, nothing)  # (T, R, B)

    # 4. weighted sum: of the rows themselves
    output = visible_sum(logits, weights, h)  # (C, R, B)

    # 5. penalty: how much the means look at the same positions
    penalty = zeros(T, B)  # (B,)
    for b in 1:B, r in 1:R, s in 1:R
        overlap = zero(T)
        for t in 1:size(h, 2)
            overlap += weights[t, r, b] * weights[t, s, b]
        end
        penalty[b] += (overlap - (r == s))^2
    end
    return (output = output, weights = weights, penalty = penalty)
end
