# The feed-forward part of a block: every position on its own through two layers, or three with a gate.
#
#     output = w_2' act(w_1' x + b_1) + b_2;   for swiglu, act is swiglu(w_1' x + b_1, w_3' x + b_3)
#
# Letters: B batch, T length, C model width, F inner width.
#
# Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.3; Shazeer, "GLU Variants Improve
# Transformer", 2020.

const ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "swiglu")

"""
    FeedForward(w_1, w_2; w_3, b_1, b_2, b_3, activation = "gelu")

The weights, `(in, out)`: `w_1` `(C, F)`, `w_2` `(F, C)`, biases one value a column or `nothing`.
`activation`: "gelu", "gelu_tanh", "relu" or "swiglu", which alone takes `w_3` `(C, F)` and `b_3`. It is
called as a function: `(C, T, B)` to `(C, T, B)`.

Throws `AttentionError`, when called: shape_mismatch, dtype_mismatch, invalid_config.
"""
struct FeedForward <: Layer
    # Any value fits, so that a wrong one is named by the call.
    w_1
    w_2
    w_3
    b_1
    b_2
    b_3
    activation
end

function FeedForward(
    w_1, w_2; w_3 = nothing, b_1 = nothing, b_2 = nothing, b_3 = nothing, activation = "gelu"
)
    @nospecialize
    return FeedForward(w_1, w_2, w_3, b_1, b_2, b_3, activation)
end

function (layer::FeedForward)(x)
    check_sequence("feed_forward", "x", x)
    check_feed_forward("feed_forward", "", layer, eltype(x), size(x, 1))
    return narrowed(fed_forward(widened(layer), widened(x)), eltype(x))
end

function fed_forward(layer::FeedForward, x::AbstractArray{T,3})::Array{T,3} where {T}
    # 1. expand: to the inner width
    inner = linear(layer.w_1, x, layer.b_1)  # (F, T, B)

    # 2. activate: the one thing here that is not linear
    active = activate(layer, inner, x)  # (F, T, B)

    # 3. contract: back to the width of the model
    return linear(layer.w_2, active, layer.b_2)  # (C, T, B)
end

function activate(layer::FeedForward, inner::Array{T,3}, x)::Array{T,3} where {T}
    layer.activation == "gelu" && return activated(inner, gelu_exact)
    layer.activation == "gelu_tanh" && return activated(inner, gelu_tanh)
    layer.activation == "relu" && return activated(inner, relu)
    return gated(inner, linear(layer.w_3, x, layer.b_3), 1)
end

relu(x) = x < 0 ? zero(x) : x
