# The ways to score a query against a key that came before, and beside, the scaled dot product.
#
#     additive   w_v · tanh(w_q' q + w_k' k)
#     dot        q · k
#     general    (w q) · k
#     scaled     (q / sqrt(D)) · k
#
# Letters: B batch, Tq and Tk query and key lengths, Dq and Dk widths of queries and keys, Dv of the values, A
# of the additive form.
#
# Sources: Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate", 2015
# (additive); Luong et al., "Effective Approaches to Attention-based Neural Machine Translation", 2015 (dot,
# general); Vaswani et al., "Attention Is All You Need", 2017 (scaled).

const FORMS = ("additive", "dot", "general", "scaled")

"""
    scoring(form, q, k, v; w_q, w_k, w_v, w, kv_lengths)

Attention of `q` `(Dq, Tq, B)` over `k` `(Dk, Tk, B)` and `v` `(Dv, Tk, B)`: an `Array` `(Dv, Tq, B)`.

- `form`: "additive", "dot", "general" or "scaled"; Dq = Dk for "dot" and "scaled"
- `w_q` `(Dq, A)`, `w_k` `(Dk, A)`, `w_v` `(A,)`: for "additive" alone
- `w` `(Dk, Dq)`: for "general" alone
- `kv_lengths`: `Int64`, `(B,)`, how many keys of each row exist

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function scoring(
    form, q, k, v; w_q = nothing, w_k = nothing, w_v = nothing, w = nothing, kv_lengths = nothing
)
    @nospecialize form w_q w_k w_v w kv_lengths
    weights = (w_q = w_q, w_k = w_k, w_v = w_v, w = w)
    return scoring_steps(form, q, k, v; weights..., kv_lengths = kv_lengths).output
end

"""
    scoring_steps(form, q, k, v; w_q, w_k, w_v, w, kv_lengths) -> (output, weights, scores)

[`scoring`](@ref) with its weights, and the scores before the mask: `(Tk, Tq, B)`; same errors.
"""
function scoring_steps(
    form, q, k, v; w_q = nothing, w_k = nothing, w_v = nothing, w = nothing, kv_lengths = nothing
)
    @nospecialize form w_q w_k w_v w kv_lengths
    check_scoring("scoring", form, q, k, v, w_q, w_k, w_v, w, kv_lengths)
    ends = per_row(kv_lengths, size(k, 2), size(k, 3))::Vector{Int}  # (B,)
    wide_q, wide_k, wide_v = widened(q), widened(k), widened(v)
    steps = scored(form, wide_q, wide_k, wide_v, widened(w_q), widened(w_k), widened(w_v), widened(w), ends)
    return narrowed(steps, eltype(q))
end

function scored(form::AbstractString, q, k, v, w_q, w_k, w_v, w, ends::Vector{Int})
    @nospecialize w_q w_k w_v w
    T = eltype(q)
    D = size(q, 1)

    # 1. scores: by the form
    scores = if form == "additive"
        additive_scores(linear(w_q, q, nothing), linear(w_k, k, nothing), w_v)
    elseif form == "dot"
        dot_scores(q, k)
    elseif form == "general"
        dot_scores(linear(permutedims(w), q, nothing), k)
    else
        dot_scores(T(1 / sqrt(D)) .* q, k)
    end::Array{T,3}  # (Tk, Tq, B)

    # 2. mask: by selection
    logits = hide_ends!(copy(scores), ends)  # (Tk, Tq, B)

    # 3. softmax: over the keys
    weights, _ = weights_and_lse(logits, nothing)  # (Tk, Tq, B)

    # 4. weighted sum: over the values of the visible keys
    output = visible_sum(logits, weights, v)  # (Dv, Tq, B)
    return (output = output, weights = weights, scores = scores)
end

# q · k for all queries and keys of each row: (D, Tq, B) and (D, Tk, B) to (Tk, Tq, B).
function dot_scores(q::AbstractArray{T,3}, k) where {T}
    scores = zeros(T, size(k, 2), size(q, 2), size(q, 3))  # (Tk, Tq, B)
    for b in 1:size(q, 3), i in 1:size(q, 2), j in 1:size(k, 2), d in 1:size(q, 1)
        scores[j, i, b] += q[d, i, b] * k[d, j, b]
    end
    return scores
end

# The same with a layer between: (A, Tq, B) and (A, Tk, B) to (Tk, Tq, B).
function additive_scores(q::AbstractArray{T,3}, k, w_v) where {T}
    scores = zeros(T, size(k, 2), size(q, 2), size(q, 3))  # (Tk, Tq, B)
    for b in 1:size(q, 3), i in 1:size(q, 2), j in 1:size(k, 2), a in 1:size(q, 1)
        scores[j, i, b] += w_v[a] * tanh(q[a, i, b] + k[a, j, b])
    end
    return scores
end

# What lies beyond the end of each row, of (Tk, Tq, B).
function hide_ends!(logits::Array{T,3}, ends::Vector{Int})::Array{T,3} where {T}
    for (b, last) in enumerate(ends)
        logits[last+1:end, :, b] .= -Inf
    end
    return logits
end

# The values weighted, (Dv, Tk, B) to (Dv, Tq, B); of a hidden slot, with a logit of -Inf, nothing is read.
function visible_sum(logits::Array{T,3}, weights::Array{T,3}, v)::Array{T,3} where {T}
    Tk, Tq, B = size(logits)
    output = zeros(T, size(v, 1), Tq, B)  # (Dv, Tq, B)
    for b in 1:B, i in 1:Tq, j in 1:Tk
        logits[j, i, b] == -Inf && continue
        for d in 1:size(v, 1)
            output[d, i, b] += weights[j, i, b] * v[d, j, b]
        end
    end
    return output
end
