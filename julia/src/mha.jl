# Multi-head attention: four projections around scaled dot-product attention.
#
#     output = w_o' · concat_h(sdpa(w_q' X, w_k' C, w_v' C)_h),   C = context, X itself for self-attention
#
# Letters: B batch, Tq and Tk query and key lengths, C model width, Cc width of the context, Hq query heads,
# Hkv key/value heads, G = Hq / Hkv, D head size, Dv head size of the values, Cout width of the output.
#
# Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2; Ainslie et al., "GQA", 2023;
# Henry et al., "Query-Key Normalization for Transformers", 2020; Michel et al., "Are Sixteen Heads Really
# Better than One?", 2019 (pruning).

"""
    MultiHeadAttention(w_q, w_k, w_v, w_o; num_heads, num_kv_heads, b_q, b_k, b_v, b_o, q_norm, k_norm,
        qk_norm_eps = 1e-6, rope)

The weights of one layer. They are `(in, out)`, `y = w' * x .+ b`, the same bytes as `(out, in)` in a
row-major language; heads are consecutive blocks of columns.

- `w_q`: `(C, D·Hq)`; `w_k`: `(Cc, D·Hkv)`; `w_v`: `(Cc, Dv·Hkv)`; `w_o`: `(Dv·Hq, Cout)`
- `num_kv_heads`: `nothing` = `num_heads`
- `b_q`, `b_k`, `b_v`, `b_o`: one value a column, or `nothing`
- `q_norm`, `k_norm`: `(D,)`, weights of an RMS norm of each head's queries and keys, or `nothing`;
  `qk_norm_eps` is its eps
- `rope`: a [`Rope`](@ref), which turns queries and keys at the same positions, or `nothing`

The layer is called as a function:

    layer(x, context = x; mask = Mask(), bias, scale, softcap, dropout, positions, head_mask)

is attention of `x` `(C, Tq, B)` over `context` `(Cc, Tk, B)`: an `Array` `(Cout, Tq, B)`. `mask`, `bias`,
`scale`, `softcap`, `dropout` are those of [`sdpa`](@ref).

- `positions`: `Int64`, `(T, B)`, for `rope`, which takes no other context than `x`
- `head_mask`: `Bool`, `(Hq,)`; a head with false contributes 0

Throws `AttentionError`, when called: shape_mismatch, dtype_mismatch, invalid_config.
"""
struct MultiHeadAttention <: Layer
    # Any value fits, so that a wrong one is named by the call. What the abstract fields cost is one dynamic
    # call a projection.
    w_q
    w_k
    w_v
    w_o
    num_heads
    num_kv_heads
    b_q
    b_k
    b_v
    b_o
    q_norm
    k_norm
    qk_norm_eps
    rope

    function MultiHeadAttention(
        w_q, w_k, w_v, w_o, num_heads, num_kv_heads, b_q, b_k, b_v, b_o, q_norm, k_norm, qk_norm_eps, rope
    )
        @nospecialize
        biases = (b_q, b_k, b_v, b_o)
        return new(w_q, w_k, w_v, w_o, num_heads, num_kv_heads, biases..., q_norm, k_norm, qk_norm_eps, rope)
    end
end

function MultiHeadAttention(
    w_q,
    w_k,
    w_v,
    w_o;
    num_heads,
    num_kv_heads = nothing,
    b_q = nothing,
    b_k = nothing,
    b_v = nothing,
    b_o = nothing,
    q_norm = nothing,
    k_norm = nothing,
    qk_norm_eps = 1e-6,
    rope = nothing
)
    @nospecialize
    kv_heads = num_kv_heads === nothing ? num_heads : num_kv_heads
    weights, biases = (w_q, w_k, w_v, w_o), (b_q, b_k, b_v, b_o)
    return MultiHeadAttention(weights..., num_heads, kv_heads, biases..., q_norm, k_norm, qk_norm_eps, rope)
end

"""
    MultiHeadAttention(w_qkv, w_o; num_heads, num_kv_heads, packing = "blocks", b_qkv, b_o, ...)

A layer whose first three projections are one: `w_qkv` `(C, D·(Hq + 2·Hkv))`, `b_qkv` one value a column, Dv =
D.

`packing`: "blocks", all of q, then k, then v; or "heads", for each KV head its G query heads, its key, its
value.

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function MultiHeadAttention(
    w_qkv, w_o; num_heads, num_kv_heads = nothing, packing = "blocks", b_qkv = nothing, options...
)
    @nospecialize
    kv_heads = num_kv_heads === nothing ? num_heads : num_kv_heads
    check_packed("mha", w_qkv, b_qkv, num_heads, kv_heads, packing)
    Hq, Hkv = Int(num_heads), Int(kv_heads)
    w = unpacked(w_qkv, Hq, Hkv, packing)
    b_q, b_k, b_v = b_qkv === nothing ? (nothing, nothing, nothing) : unpacked(b_qkv, Hq, Hkv, packing)
    parts = (num_heads = num_heads, num_kv_heads = kv_heads, b_q = b_q, b_k = b_k, b_v = b_v)
    return MultiHeadAttention(w..., w_o; parts..., options...)
end

# The last dimension in blocks of one head each; which of them are q, k and v.
function unpacked(x, Hq::Int, Hkv::Int, packing)
    @nospecialize x
    D = size(x, ndims(x)) ÷ (Hq + 2Hkv)
    owners = packing == "blocks" ?
        [fill(:q, Hq); fill(:k, Hkv); fill(:v, Hkv)] : repeat([fill(:q, Hq ÷ Hkv); :k; :v], Hkv)
    columns(owner) = [(n - 1) * D + d for n in findall(==(owner), owners) for d in 1:D]
    select(owner) = ndims(x) == 1 ? x[columns(owner)] : x[:, columns(owner)]
    return select(:q), select(:k), select(:v)
end

"""
    num_parameters(layer)

How many numbers a [`MultiHeadAttention`](@ref) holds: the same with one head as with many of the same total
width.
"""
function num_parameters(layer::MultiHeadAttention)
    fields = (getfield(layer, name) for name in fieldnames(MultiHeadAttention))
    return reduce(+, (length(x) for x in fields if x isa AbstractArray); init = 0)
end

function (layer::MultiHeadAttention)(
    x,
    context = x;
    mask = Mask(),
    bias = nothing,
    scale = nothing,
    softcap = nothing,
    dropout = nothing,
    positions = nothing,
    head_mask = nothing
)
    @nospecialize mask bias scale softcap dropout positions head_mask
    call = MhaCall(mask, bias, scale, softcap, dropout, positions, head_mask)
    return checked_multi_head(layer, x, context, call).output
end

"""
    mha_steps(layer, x, context = x; mask, bias, scale, softcap, dropout, positions, head_mask)
        -> (output, weights, lse, mean_weights)

The call of a [`MultiHeadAttention`](@ref) with the `weights` of its attention, `(Tk, Tq, Hq, B)`, before
dropout and pruning, their `lse`, `(Tq, Hq, B)`, and their mean over the heads, `(Tk, Tq, B)`; same arguments
and errors.
"""
function mha_steps(
    layer::MultiHeadAttention,
    x,
    context = x;
    mask = Mask(),
    bias = nothing,
    scale = nothing,
    softcap = nothing,
    dropout = nothing,
    positions = nothing,
    head_mask = nothing
)
    @nospecialize mask bias scale softcap dropout positions head_mask
    call = MhaCall(mask, bias, scale, softcap, dropout, positions, head_mask)
    return checked_multi_head(layer, x, context, call)
end

# The options of one call. One concrete type for all of them: nothing is compiled again for another
# combination.
Base.@kwdef struct MhaCall
    mask = Mask()
    bias = nothing
    scale = nothing
    softcap = nothing
    dropout = nothing
    positions = nothing
    head_mask = nothing
end

function checked_multi_head(layer::MultiHeadAttention, x, context, call::MhaCall)
    check_mha("mha", layer, x, context, call)
    wide_x = widened(x)
    wide_context = context === x ? wide_x : widened(context)
    return narrowed(multi_head(widened(layer), wide_x, wide_context, call), eltype(x))
end

# Queries (D, Tq, Hq, B), keys (D, Tk, Hkv, B) and values (Dv, Tk, Hkv, B).
function project_heads(layer::MultiHeadAttention, x, context, positions)
    T = eltype(x)

    # 1. project: columns of x to queries, columns of the context to keys and values
    q = linear(layer.w_q, x, layer.b_q)  # (D·Hq, Tq, B)
    k = linear(layer.w_k, context, layer.b_k)  # (D·Hkv, Tk, B)
    v = linear(layer.w_v, context, layer.b_v)  # (Dv·Hkv, Tk, B)

    # 2. split heads: consecutive blocks of channels, then positions before heads
    q = split_heads(q, layer.num_heads)  # (D, Tq, Hq, B)
    k = split_heads(k, layer.num_kv_heads)  # (D, Tk, Hkv, B)
    v = split_heads(v, layer.num_kv_heads)  # (Dv, Tk, Hkv, B)

    # 3. normalise: queries and keys of each head, so that no score grows without bound
    q = norm_heads(q, layer.q_norm, layer.qk_norm_eps)::Array{T,4}  # (D, Tq, Hq, B)
    k = norm_heads(k, layer.k_norm, layer.qk_norm_eps)::Array{T,4}  # (D, Tk, Hkv, B)

    # 4. rotate: queries and keys by their positions
    q = turn_heads(q, layer.rope, positions)::Array{T,4}  # (D, Tq, Hq, B)
    k = turn_heads(k, layer.rope, positions)::Array{T,4}  # (D, Tk, Hkv, B)
    return q, k, v
end

function multi_head(layer::MultiHeadAttention, x, context, call::MhaCall)
    q, k, v = project_heads(layer, x, context, call.positions)

    # 5. attention: every head on its own
    bias = widened(call.bias)
    heads = attention(q, k, v, call.mask, bias, call.scale, call.softcap, nothing, call.dropout)

    # 6. prune: by selection, so that a head left out is 0 whatever it holds
    kept = keep_heads(heads.output, call.head_mask)::typeof(heads.output)  # (Dv, Tq, Hq, B)

    # 7. merge heads: heads before positions again, side by side
    merged = merge_heads(kept)  # (Dv·Hq, Tq, B)

    # 8. output projection: mixes the heads
    output = linear(layer.w_o, merged, layer.b_o)  # (Cout, Tq, B)
    mean_weights = head_mean(heads.weights)  # (Tk, Tq, B)
    return (output = output, weights = heads.weights, lse = heads.lse, mean_weights = mean_weights)
end

norm_heads(x, ::Nothing, eps) = x
norm_heads(x, weight, eps) = rms_normed(x, weight, eps)

turn_heads(x, ::Nothing, positions) = x
function turn_heads(x, options::Rope, positions)
    at = rope_positions(options, positions, size(x, 2), size(x, 4))  # (T, B)
    cosines, sines = rope_tables(eltype(x), options, rotary_dim(options, size(x, 1)), at)  # (R/2, T, B)
    return rotated(x, cosines, sines, options.interleaved)
end

# (Tk, Tq, H, B) to (Tk, Tq, B).
function head_mean(weights::Array{T,4}) where {T}
    Tk, Tq, H, B = size(weights)
    mean = zeros(T, Tk, Tq, B)
    for b in 1:B, h in 1:H, i in 1:Tq, j in 1:Tk
        mean[j, i, b] += weights[j, i, h, b]
    end
    return mean ./ H
end

keep_heads(x, ::Nothing) = x
keep_heads(x, head_mask) = ifelse.(reshape(head_mask, 1, 1, :), x, zero(eltype(x)))
