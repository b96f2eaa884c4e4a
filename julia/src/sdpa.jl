# Scaled dot-product attention, as plain as the formula.
#
#     output = V · softmax(mask(softcap(Kᵀ · (scale · Q)) + bias)),   one head at a time, feature-first
#
# Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv query heads a KV head, Tq and Tk query
# and key lengths, D head size, Dv head size of the values. Index i is a query, j a key, h a query head, g its
# KV head.
#
# A slot (one query, one key) is *hidden* when the mask hides it, its bias is -Inf, or its score after the
# bias is -Inf. A hidden slot has weight exactly 0, and nothing of it reaches the result: NaN in its K or V
# changes nothing.
#
# Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.1; Ainslie et al., "GQA", 2023
# (groups); Gemma 2 report, 2024 (softcap); gpt-oss, 2025 (sinks). The order of the steps is that of ONNX
# Attention, opset 25.

"""
    sdpa(q, k, v; mask = Mask(), bias, scale, softcap, sinks, dropout)

Attention of `q` `(D, Tq, Hq, B)` over `k` `(D, Tk, Hkv, B)` and `v` `(Dv, Tk, Hkv, B)`: an `Array` `(Dv, Tq,
Hq, B)`.

Query head h reads KV head `fld1(h, G)`. Tq, Tk and B may be 0. All arithmetic is in the element type of the
inputs, which is that of the result; half types are computed in `Float32`, and the result is rounded once.
Views, permuted and strided arrays are taken as they are.

- `mask`: which key each query sees; see [`Mask`](@ref)
- `bias`: added to the scores, broadcasts to `(Tk, Tq, Hq, B)`, aligned on the left; -Inf hides its slot
- `scale`: `nothing` = 1/sqrt(D); an explicit 0 is 0
- `softcap`: c > 0 bounds the scores to (-c, c) by c·tanh(s/c); `nothing` = off
- `sinks`: `(Hq,)`, a logit per head that joins the denominator of the softmax and carries no value
- `dropout`: of the weights; see [`Dropout`](@ref). Elements are numbered over `(Tk, Tq, Hq, B)`

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function sdpa(
    q,
    k,
    v;
    mask = Mask(),
    bias = nothing,
    scale = nothing,
    softcap = nothing,
    sinks = nothing,
    dropout = nothing
)
    @nospecialize mask bias scale softcap sinks dropout
    return checked_attention(q, k, v, mask, bias, scale, softcap, sinks, dropout).output
end

"""
    sdpa_steps(q, k, v; mask, bias, scale, softcap, sinks, dropout)
        -> (output, weights, lse, scores, capped, biased)

[`sdpa`](@ref) with its intermediates; same arguments and errors. `scores`, `capped` and `biased` are before
the mask, `weights` before the dropout: `(Tk, Tq, Hq, B)` all of them. `lse` is `(Tq, Hq, B)`.
"""
function sdpa_steps(
    q,
    k,
    v;
    mask = Mask(),
    bias = nothing,
    scale = nothing,
    softcap = nothing,
    sinks = nothing,
    dropout = nothing
)
    @nospecialize mask bias scale softcap sinks dropout
    return checked_attention(q, k, v, mask, bias, scale, softcap, sinks, dropout)
end

function checked_attention(q, k, v, mask, bias, scale, softcap, sinks, dropout)
    @nospecialize mask bias scale softcap sinks dropout
    check_sdpa("sdpa", q, k, v, mask, bias, scale, softcap, sinks, dropout)
    wide_q, wide_k, wide_v = widened(q), widened(k), widened(v)
    steps = attention(wide_q, wide_k, wide_v, mask, widened(bias), scale, softcap, widened(sinks), dropout)
    return narrowed(steps, eltype(q))
end

# The options are not specialised on: each combination of them would be another compilation of the loops.
function attention(q, k, v, mask, bias, scale, softcap, sinks, dropout)
    @nospecialize mask bias scale softcap sinks dropout
    T = eltype(q)
    D, Tq, Hq, B = size(q)
    Dv, Tk, Hkv, _ = size(v)
    G = Hq ÷ max(Hkv, 1)
    scale = scale_of(T, scale, D)

    # 1. scores: Kᵀ · (scale · Q); scale goes onto q first: a sum that fits when scaled must not overflow
    scores = Array{T}(undef, Tk, Tq, Hq, B)  # (Tk, Tq, Hq, B)
    for b in 1:B, h in 1:Hq, i in 1:Tq, j in 1:Tk
        g = fld1(h, G)
        score = zero(T)
        for d in 1:D
            score += (scale * q[d, i, h, b]) * k[d, j, g, b]
        end
        scores[j, i, h, b] = score
    end

    # 2. softcap: c · tanh(s / c), before the mask, which it would otherwise make finite
    capped = cap(scores, softcap)::Array{T,4}

    # 3. bias: added as it is
    biased = add_bias(capped, bias)::Array{T,4}

    # 4. mask: by selection, never by adding a large number
    shown = visible(mask, Tk, Tq, Hq, B)  # (Tk, Tq, Hq, B)
    hide_minus_infinity!(shown, bias)
    logits = ifelse.(shown, biased, T(-Inf))

    # 5. softmax: over the keys; the sinks join the sum
    weights, lse = weights_and_lse(logits, per_head(sinks))  # (Tk, Tq, Hq, B), (Tq, Hq, B)

    # 6. dropout: after the softmax; what is left is not normalised again, and a row of NaN stays one
    dropped = drop_weights(weights, dropout)::Array{T,4}  # (Tk, Tq, Hq, B)

    # 7. weighted sum: over the values of the visible keys
    output = zeros(T, Dv, Tq, Hq, B)  # (Dv, Tq, Hq, B)
    for b in 1:B, h in 1:Hq, i in 1:Tq, j in 1:Tk
        logits[j, i, h, b] == -Inf && continue
        g = fld1(h, G)
        weight = dropped[j, i, h, b]
        for d in 1:Dv
            output[d, i, h, b] += weight * v[d, j, g, b]
        end
    end
    return (output = output, weights = weights, lse = lse, scores = scores, capped = capped, biased = biased)
end

scale_of(::Type{T}, ::Nothing, D::Int) where {T} = T(1 / sqrt(D))
scale_of(::Type{T}, scale, ::Int) where {T} = T(scale)::T

cap(scores, ::Nothing) = scores
function cap(scores, softcap)
    c = eltype(scores)(softcap)
    return c .* tanh.(scores ./ c)
end

add_bias(x, ::Nothing) = x
add_bias(x, bias) = x .+ bias

hide_minus_infinity!(shown, ::Nothing) = shown
hide_minus_infinity!(shown, bias) = shown .&= bias .!= -Inf

drop_weights(weights, ::Nothing) = weights
drop_weights(weights, dropout) = ifelse.(isnan.(weights), weights, drop(weights, dropout, 0).output)

# (Hq,) as (1, Hq), which broadcasts to (Tq, Hq, B).
per_head(::Nothing) = nothing
per_head(sinks) = reshape(sinks, 1, :)
