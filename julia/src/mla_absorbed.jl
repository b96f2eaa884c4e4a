# Multi-head latent attention without expanding the keys and values: the two projections from the latent move
# to the other side of the dot products.
#
#     (w_uk,h' c) · q_n = c · (w_uk,h q_n),   Σ_j a_j w_uv,h' c_j = w_uv,h' Σ_j a_j c_j
#
# So every head attends to the latent itself, as if there were one KV head with the key [c; k_r] and the value
# c. It is the form for decoding: the cache is read as it is.
#
# Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.2 and appendix C.

"""
    mla_absorbed(layer, x; causal, kv_lengths, scale) -> (output, weights, lse, latent, rope_key)

The same as [`mla_steps`](@ref), from the latent alone; same errors.
"""
function mla_absorbed(
    layer::MultiHeadLatentAttention, x; causal = false, kv_lengths = nothing, scale = nothing
)
    @nospecialize causal kv_lengths scale
    mask = Mask(causal = causal, kv_lengths = kv_lengths)
    check_mla("mla_absorbed", layer, x, mask, scale)
    return narrowed(latent_attention(widened(layer), widened(x), mask, scale), eltype(x))
end

function latent_attention(layer::MultiHeadLatentAttention, x::AbstractArray{T,3}, mask::Mask, scale) where {T}
    @nospecialize scale
    # 1. queries: perhaps by way of a latent of their own
    q = latent_queries(layer, x)  # (Dn+Dr, T, H, B)

    # 2. latent: it is all that is attended to
    latent = normed(linear(layer.w_dkv, x, nothing), layer.kv_norm, layer.eps)  # (R, T, B)

    # 3. rotate: the last Dr channels of every query, and one key a token
    q_n, q_r = split_rotary(layer, q)  # (Dn, T, H, B), (Dr, T, H, B)
    rope_key = turned_key(layer, x)  # (Dr, T, 1, B)

    # 4. absorb: the queries take the projection of the keys over
    absorbed = map_heads((w, x) -> w * x, layer.w_uk, q_n, size(latent, 1))  # (R, T, H, B)

    # 5. attention: of all heads over one key and one value a token
    c = reshape(latent, size(latent, 1), size(latent, 2), 1, size(latent, 3))  # (R, T, 1, B)
    whole_q = cat(absorbed, q_r; dims = 1)::Array{T,4}  # (R+Dr, T, H, B)
    whole_k = cat(c, rope_key; dims = 1)::Array{T,4}  # (R+Dr, T, 1, B)
    scale = scale_of(T, scale, size(q, 1))
    heads = attention(whole_q, whole_k, c, mask, nothing, scale, nothing, nothing, nothing)

    # 6. lift: the outputs take the projection of the values over
    Dv = size(layer.w_uv, 2) ÷ size(q, 3)
    lifted = map_heads((w, x) -> w' * x, layer.w_uv, heads.output, Dv)  # (Dv, T, H, B)

    # 7. output projection: mixes the heads
    output = linear(layer.w_o, merge_heads(lifted), nothing)  # (Cout, T, B)
    return mla_result(output, heads, latent, rope_key)
end

# product(w_h, x_h) (n, T) for the block w_h of columns and the head x_h, for every head: (n, T, H, B).
function map_heads(product, w, x::Array{T,4}, n::Int)::Array{T,4} where {T}
    _, len, H, B = size(x)
    blocks = reshape(w, size(w, 1), size(w, 2) ÷ H, H)
    output = Array{T}(undef, n, len, H, B)  # (n, T, H, B)
    for b in 1:B, h in 1:H
        output[:, :, h, b] = product(blocks[:, :, h], x[:, :, h, b])
    end
    return output
end
