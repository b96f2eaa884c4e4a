# A transformer from tokens to logits: embeddings, blocks, and one more projection.
#
# Letters: B batch, T length, C model width, V tokens of the vocabulary, P positions, S kinds of segments.
#
# Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3; Devlin et al., "BERT", 2019
# (segments, and a norm of the embeddings); Press and Wolf, "Using the Output Embedding to Improve Language
# Models", 2017 (one table for both ends).

"""
    Transformer(embedding, blocks; position_embedding, segment_embedding, embedding_norm, final_norm,
        unembedding)

Tables have one column an index: `embedding` `(C, V)`, `position_embedding` `(C, P)`, `segment_embedding` `(C,
S)`, `unembedding` `(C, V)`, which is `embedding` itself when absent. `blocks`: [`Block`](@ref)s without a
context; `embedding_norm`, `final_norm`: [`Norm`](@ref)s, or `nothing`.

    transformer(tokens; segments = nothing, causal = false, kv_lengths = nothing)

is `(C, T, B)` for `tokens` and `segments`, `Int64`, `(T, B)`, counted from 0. There are `segments` when there
is a table for them. `causal`, `kv_lengths`: as for [`Block`](@ref).

Throws `AttentionError`, when called: shape_mismatch, dtype_mismatch, invalid_config.
"""
struct Transformer <: Layer
    # Any value fits, so that a wrong one is named by the call.
    embedding
    blocks
    position_embedding
    segment_embedding
    embedding_norm
    final_norm
    unembedding
end

function Transformer(
    embedding,
    blocks;
    position_embedding = nothing,
    segment_embedding = nothing,
    embedding_norm = nothing,
    final_norm = nothing,
    unembedding = nothing
)
    @nospecialize
    list, tables = layer_list(blocks), (position_embedding, segment_embedding)
    return Transformer(embedding, list, tables..., embedding_norm, final_norm, unembedding)
end

function (model::Transformer)(tokens; segments = nothing, causal = false, kv_lengths = nothing)
    @nospecialize
    options = (segments = segments, causal = causal, kv_lengths = kv_lengths)
    return transformer_steps(model, tokens; options...).output
end

"""
    transformer_steps(model, tokens; segments, causal, kv_lengths) -> (output, logits)

The call of a [`Transformer`](@ref) with its `logits`, `(V, T, B)`; same arguments and errors.
"""
function transformer_steps(
    model::Transformer, tokens; segments = nothing, causal = false, kv_lengths = nothing
)
    @nospecialize
    mask = Mask(causal = causal, kv_lengths = kv_lengths)
    check_transformer("transformer", model, tokens, segments, mask)
    wide = widened(model)
    return narrowed(from_tokens(wide, wide.embedding, tokens, segments, mask), eltype(model.embedding))
end

function from_tokens(model::Transformer, embedding, tokens, segments, mask::Mask)
    @nospecialize tokens segments
    T = eltype(embedding)

    # 1. embed: the token, where it stands, and to which segment it belongs
    x = embedding[:, tokens .+ 1]::Array{T,3}  # (C, T, B)
    x = add_positions(x, model.position_embedding)::Array{T,3}
    x = add_segments(x, model.segment_embedding, segments)::Array{T,3}
    x = maybe_normed(model.embedding_norm, x)::Array{T,3}

    # 2. layers: one block after the other
    for block in model.blocks
        x = through(block::Block, x, nothing, mask, Mask())::Array{T,3}  # (C, T, B)
    end

    # 3. final norm: when the blocks end without one
    output = maybe_normed(model.final_norm, x)::Array{T,3}  # (C, T, B)

    # 4. logits: how alike the output is to each token's own column
    unembedding = model.unembedding === nothing ? embedding : model.unembedding  # (C, V)
    logits = linear(unembedding, output, nothing)  # (V, T, B)
    return (output = output, logits = logits)
end

add_positions(x, ::Nothing) = x
add_positions(x, table) = x .+ table[:, 1:size(x, 2)]
add_segments(x, ::Nothing, segments) = x
add_segments(x, table, segments) = x .+ table[:, segments .+ 1]
maybe_normed(::Nothing, x) = x
maybe_normed(norm::Norm, x) = normed(norm, x)
