# A transformer block: attention, perhaps attention to a context, and a feed-forward part, each with a norm
# and a residual connection around it.
#
#     x + f(norm(x)) when the norm comes first, norm(x + f(x)) when it comes last
#
# Letters: B batch, T length, C model width, Tk and Cc length and width of the context.
#
# Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.1 (norm last); Xiong et al., "On Layer
# Normalization in the Transformer Architecture", 2020 (norm first).

"""
    Norm(weight = nothing, bias = nothing; kind = "layer", eps = 1e-5)

The weights of a [`layer_norm`](@ref), or of an [`rms_norm`](@ref), which has no bias, for `kind` "rms". It is
called as a function: `(C, ...)` to `(C, ...)`.

Throws `AttentionError`, when called: shape_mismatch, dtype_mismatch, invalid_config.
"""
struct Norm <: Layer
    # Any value fits, so that a wrong one is named by the call.
    weight
    bias
    kind
    eps
end

function Norm(weight = nothing, bias = nothing; kind = "layer", eps = 1e-5)
    @nospecialize
    return Norm(weight, bias, kind, eps)
end

function (layer::Norm)(x)
    check_float("norm", "x", x)
    ndims(x) >= 1 || reject(:shape_mismatch, "norm", "x", "at least one dimension", "rank 0")
    check_norm_layer("norm", "", layer, eltype(x), size(x, 1))
    return narrowed(normed(widened(layer), widened(x)), eltype(x))
end

function normed(layer::Norm, x::AbstractArray{T,N})::Array{T,N} where {T,N}
    layer.kind == "rms" && return rms_normed(x, layer.weight, layer.eps)
    return layer_normed(x, layer.weight, layer.bias, layer.eps).output
end

"""
    Block(attention, feed_forward, norms; cross = nothing, norm_first = true)

One block: a [`MultiHeadAttention`](@ref) to itself, perhaps `cross`, another one to a context, and a
[`FeedForward`](@ref); `norms` are as many [`Norm`](@ref)s as it has parts, in this order.

    block(x, context = nothing; causal = false, kv_lengths = nothing, context_lengths = nothing)

is `(C, T, B)` for `x` `(C, T, B)` and `context` `(Cc, Tk, B)`, which there must be for `cross` and for
nothing else.

- `causal`: in the attention to itself no position sees a later one
- `kv_lengths`, `context_lengths`: `Int64`, `(B,)`, how many positions of each row of `x` and of `context`
  exist

Throws `AttentionError`, when called: shape_mismatch, dtype_mismatch, invalid_config.
"""
struct Block <: Layer
    # Any value fits, so that a wrong one is named by the call.
    attention
    cross
    feed_forward
    norms
    norm_first
end

function Block(attention, feed_forward, norms; cross = nothing, norm_first = true)
    @nospecialize
    return Block(attention, cross, feed_forward, layer_list(norms), norm_first)
end

function (layer::Block)(x, context = nothing; causal = false, kv_lengths = nothing, context_lengths = nothing)
    @nospecialize context causal kv_lengths context_lengths
    mask, context_mask = Mask(causal = causal, kv_lengths = kv_lengths), Mask(kv_lengths = context_lengths)
    check_sequence("block", "x", x)
    check_block("block", "", layer, eltype(x), size(x), context, mask, context_mask)
    return narrowed(through(widened(layer), widened(x), widened(context), mask, context_mask), eltype(x))
end

function through(layer::Block, x::AbstractArray{T,3}, context, mask::Mask, context_mask::Mask) where {T}
    @nospecialize context
    last_norm = layer.norms[end]::Norm

    # 1. self-attention: over the positions of x
    x = residual(layer, layer.norms[1]::Norm, x) do y
        multi_head(layer.attention::MultiHeadAttention, y, y, MhaCall(mask = mask)).output
    end  # (C, T, B)

    # 2. cross-attention: over those of the context, if there is one
    if layer.cross !== nothing
        x = residual(layer, layer.norms[2]::Norm, x) do y
            multi_head(layer.cross::MultiHeadAttention, y, context, MhaCall(mask = context_mask)).output
        end  # (C, T, B)
    end

    # 3. feed-forward: every position on its own
    return residual(y -> fed_forward(layer.feed_forward::FeedForward, y), layer, last_norm, x)  # (C, T, B)
end

# What a part adds to x, with the norm before the part or after the sum.
function residual(part, layer::Block, norm::Norm, x::AbstractArray{T,3})::Array{T,3} where {T}
    layer.norm_first && return x .+ part(normed(norm, x))
    return normed(norm, x .+ part(x))
end
