# Multi-head latent attention: keys and values of all heads come from one short vector a token, which is all
# that a cache would have to hold.
#
#     c = rms_norm(w_dkv' x),   k_r = rope(w_kr' x)                one of each a token, for all heads
#     k_h = [w_uk,h' c; k_r],   v_h = w_uv,h' c,   q_h = [q_n; rope(q_r)]
#
# Letters: B batch, T length, C model width, R width of the latent, Rq that of the queries, H heads, Dn and Dr
# parts of a head without and with rotation, Dv head size of the values, Cout width of the output.
#
# Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.

"""
    MultiHeadLatentAttention(; w_q, w_dkv, w_kr, w_uk, w_uv, w_o, num_heads, w_dq, q_norm, kv_norm,
        eps = 1e-6, rope = Rope())

The weights of one layer, `(in, out)`; heads are consecutive blocks of columns, of `w_q` each with Dn columns
without and then Dr with rotation.

- `w_q`: `(C, H·(Dn+Dr))`, or `(Rq, H·(Dn+Dr))` after `w_dq` `(C, Rq)` and the RMS norm with `q_norm` `(Rq,)`
- `w_dkv`: `(C, R)`, and `kv_norm` `(R,)` the weights of its RMS norm, or `nothing`; `eps` is that of both
  norms
- `w_kr`: `(C, Dr)`; `w_uk`: `(R, H·Dn)`; `w_uv`: `(R, H·Dv)`; `w_o`: `(H·Dv, Cout)`

The layer is called as a function: `layer(x; causal = false, kv_lengths = nothing, scale = nothing)` is
self-attention of `x` `(C, T, B)`, an `Array` `(Cout, T, B)`. `scale`: `nothing` = 1/sqrt(Dn + Dr).

Throws `AttentionError`, when called: shape_mismatch, dtype_mismatch, invalid_config.
"""
Base.@kwdef struct MultiHeadLatentAttention <: Layer
    # Any value fits, so that a wrong one is named by the call.
    w_q
    w_dkv
    w_kr
    w_uk
    w_uv
    w_o
    num_heads
    w_dq = nothing
    q_norm = nothing
    kv_norm = nothing
    eps = 1e-6
    rope = Rope()
end

function (layer::MultiHeadLatentAttention)(x; causal = false, kv_lengths = nothing, scale = nothing)
    @nospecialize causal kv_lengths scale
    return mla_steps(layer, x; causal = causal, kv_lengths = kv_lengths, scale = scale).output
end

"""
    mla_steps(layer, x; causal, kv_lengths, scale) -> (output, weights, lse, latent, rope_key)

The call of a [`MultiHeadLatentAttention`](@ref) with its `weights` `(T, T, H, B)` and `lse` `(T, H, B)`, and
what a cache would hold: `latent` `(R, T, B)` and `rope_key` `(Dr, T, B)`; same arguments and errors.
"""
function mla_steps(layer::MultiHeadLatentAttention, x; causal = false, kv_lengths = nothing, scale = nothing)
    @nospecialize causal kv_lengths scale
    mask = Mask(causal = causal, kv_lengths = kv_lengths)
    check_mla("mla", layer, x, mask, scale)
    return narrowed(expanded_attention(widened(layer), widened(x), mask, scale), eltype(x))
end

function expanded_attention(layer::MultiHeadLatentAttention, x, mask::Mask, scale)
    @nospecialize scale
    H = Int(layer.num_heads)

    # 1. queries: perhaps by way of a latent of their own
    q = latent_queries(layer, x)  # (Dn+Dr, T, H, B)

    # 2. latent: what the keys and values of all heads come from
    latent = normed(linear(layer.w_dkv, x, nothing), layer.kv_norm, layer.eps)  # (R, T, B)

    # 3. rotate: the last Dr channels of every query, and one key a token
    q_n, q_r = split_rotary(layer, q)  # (Dn, T, H, B), (Dr, T, H, B)
    rope_key = turned_key(layer, x)  # (Dr, T, 1, B)

    # 4. expand: a key and a value of its own for every head
    k_n = split_heads(linear(layer.w_uk, latent, nothing), H)  # (Dn, T, H, B)
    v = split_heads(linear(layer.w_uv, latent, nothing), H)  # (Dv, T, H, B)
    k = cat(k_n, repeat(rope_key; outer = (1, 1, H, 1)); dims = 1)::typeof(k_n)  # (Dn+Dr, T, H, B)

    # 5. attention: every head on its own
    q = cat(q_n, q_r; dims = 1)::typeof(q_n)  # (Dn+Dr, T, H, B)
    heads = attention(q, k, v, mask, nothing, scale, nothing, nothing, nothing)

    # 6. output projection: mixes the heads
    output = linear(layer.w_o, merge_heads(heads.output), nothing)  # (Cout, T, B)
    return mla_result(output, heads, latent, rope_key)
end

function latent_queries(layer::MultiHeadLatentAttention, x::AbstractArray{T,3})::Array{T,4} where {T}
    source = layer.w_dq === nothing ? x : normed(linear(layer.w_dq, x, nothing), layer.q_norm, layer.eps)
    return split_heads(linear(layer.w_q, source, nothing), layer.num_heads)
end

normed(x, ::Nothing, eps) = x
normed(x, weight, eps) = rms_normed(x, weight, eps)

# Queries in their two parts, the second one turned.
function split_rotary(layer::MultiHeadLatentAttention, q::Array{T,4})::NTuple{2,Array{T,4}} where {T}
    Dn = size(q, 1) - size(layer.w_kr, 2)
    return q[1:Dn, :, :, :], turn_heads(q[Dn+1:end, :, :, :], layer.rope, nothing)
end

# The one rotary key of each token, as a head: (Dr, T, 1, B).
function turned_key(layer::MultiHeadLatentAttention, x::AbstractArray{T,3})::Array{T,4} where {T}
    return turn_heads(split_heads(linear(layer.w_kr, x, nothing), 1), layer.rope, nothing)
end

mla_result(output, heads, latent, rope_key) = (
    output = output,
    weights = heads.weights,
    lse = heads.lse,
    latent = latent,
    rope_key = dropdims(rope_key; dims = 3),
)
