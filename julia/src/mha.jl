# Multi-head attention: four projections around scaled dot-product attention.
#
#     output = w_o' · concat_h(sdpa(w_q' X, w_k' C, w_v' C)_h),   C = context, X itself for self-attention
#
# Letters: B batch, Tq and Tk query and key lengths, C model width, Cc width of the context, Hq query heads,
# Hkv key/value heads, D head size, Dv head size of the values, Cout width of the output.
#
# Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2; Ainslie et al., "GQA", 2023.

"""
The output of one call of [`MultiHeadAttention`](@ref) with the weights and log-sum-exp of its attention.
"""
struct MhaSteps{T}
    output::Array{T,3}  # (Cout, Tq, B)
    weights::Array{T,4}  # (Tk, Tq, Hq, B)
    lse::Array{T,3}  # (Tq, Hq, B)
end

"""
    MultiHeadAttention(w_q, w_k, w_v, w_o; num_heads, num_kv_heads, b_q, b_k, b_v, b_o)

The weights of one layer. They are `(in, out)`, `y = w' * x .+ b`, the same bytes as `(out, in)` in a
row-major language; heads are consecutive blocks of columns.

- `w_q`: `(C, D·Hq)`; `w_k`: `(Cc, D·Hkv)`; `w_v`: `(Cc, Dv·Hkv)`; `w_o`: `(Dv·Hq, Cout)`
- `num_kv_heads`: `nothing` = `num_heads`
- `b_q`, `b_k`, `b_v`, `b_o`: one value a column, or `nothing`

The layer is called as a function:

    layer(x, context = x; mask = Mask(), bias = nothing, scale = nothing, softcap = nothing)

is attention of `x` `(C, Tq, B)` over `context` `(Cc, Tk, B)`: an `Array` `(Cout, Tq, B)`. The keywords are
those of [`sdpa`](@ref).

Throws `AttentionError`, when called: shape_mismatch, dtype_mismatch, invalid_config.
"""
struct MultiHeadAttention
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

    function MultiHeadAttention(w_q, w_k, w_v, w_o, num_heads, num_kv_heads, b_q, b_k, b_v, b_o)
        @nospecialize
        return new(w_q, w_k, w_v, w_o, num_heads, num_kv_heads, b_q, b_k, b_v, b_o)
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
    b_o = nothing
)
    @nospecialize
    kv_heads = num_kv_heads === nothing ? num_heads : num_kv_heads
    return MultiHeadAttention(w_q, w_k, w_v, w_o, num_heads, kv_heads, b_q, b_k, b_v, b_o)
end

function (layer::MultiHeadAttention)(
    x, context = x; mask = Mask(), bias = nothing, scale = nothing, softcap = nothing
)
    @nospecialize mask bias scale softcap
    return multi_head(layer, x, context, mask, bias, scale, softcap).output
end

"""
    mha_steps(layer, x, context = x; mask, bias, scale, softcap) -> MhaSteps

The call of a [`MultiHeadAttention`](@ref) with its intermediates; same arguments and errors.
"""
function mha_steps(
    layer::MultiHeadAttention,
    x,
    context = x;
    mask = Mask(),
    bias = nothing,
    scale = nothing,
    softcap = nothing
)
    @nospecialize mask bias scale softcap
    return multi_head(layer, x, context, mask, bias, scale, softcap)
end

function multi_head(layer::MultiHeadAttention, x, context, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    check_mha("mha", x, context, layer)

    # 1. project: columns of x to queries, columns of the context to keys and values
    q = linear(layer.w_q, x, layer.b_q)  # (D·Hq, Tq, B)
    k = linear(layer.w_k, context, layer.b_k)  # (D·Hkv, Tk, B)
    v = linear(layer.w_v, context, layer.b_v)  # (Dv·Hkv, Tk, B)

    # 2. split heads: consecutive blocks of channels, then positions before heads
    q = split_heads(q, layer.num_heads)  # (D, Tq, Hq, B)
    k = split_heads(k, layer.num_kv_heads)  # (D, Tk, Hkv, B)
    v = split_heads(v, layer.num_kv_heads)  # (Dv, Tk, Hkv, B)

    # 3. attention: every head on its own
    heads = attention(q, k, v, mask, bias, scale, softcap, nothing)  # output (Dv, Tq, Hq, B)

    # 4. merge heads: heads before positions again, side by side
    merged = merge_heads(heads.output)  # (Dv·Hq, Tq, B)

    # 5. output projection: mixes the heads
    output = linear(layer.w_o, merged, layer.b_o)  # (Cout, Tq, B)
    return MhaSteps(output, heads.weights, heads.lse)
end

# y = w' x + b: (in, T, B) to (out, T, B).
function linear(w, x::AbstractArray{T,3}, b)::Array{T,3} where {T}
    width, len, batch = size(x)
    y = w' * reshape(x, width, len * batch)
    return reshape(add_bias(y, b), size(w, 2), len, batch)
end

# (n·H, T, B) to (n, T, H, B).
function split_heads(x::Array{T,3}, num_heads)::Array{T,4} where {T}
    width, len, batch = size(x)
    return permutedims(reshape(x, width ÷ Int(num_heads), Int(num_heads), len, batch), (1, 3, 2, 4))
end

# (n, T, H, B) to (n·H, T, B).
function merge_heads(x::Array{T,4})::Array{T,3} where {T}
    n, len, num_heads, batch = size(x)
    return reshape(permutedims(x, (1, 3, 2, 4)), n * num_heads, len, batch)
end
