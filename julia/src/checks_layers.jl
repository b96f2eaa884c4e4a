# The checks of what has weights. `prefix` comes before the names of the weights of a layer inside of another:
# "layers.1.attention." before "w_o". Without its dot it is the name of that layer.

function check_kind(name::String, prefix::String, @nospecialize(layer), @nospecialize(kind), due::String)
    argument = isempty(prefix) ? "layer" : String(chop(prefix))
    layer isa kind || reject(:invalid_config, name, argument, due, typeof(layer))
    return nothing
end

# x (C, T, B).
function check_sequence(name::String, argument::String, @nospecialize(x))
    check_float(name, argument, x)
    return check_rank(name, argument, x, "(C, T, B)", 3)
end

# One value a column of w, or none.
check_bias(name::String, argument::String, @nospecialize(b), @nospecialize(w)) =
    check_like(name, argument, b, eltype(w), (size(w, 2),))

# A call of a layer on x (C, Tq, B) and context (Cc, Tk, B).
function check_mha(name::String, layer, x, context, call)
    @nospecialize
    check_head_counts(name, layer.num_heads, layer.num_kv_heads)
    check_sequence(name, "x", x)
    T = eltype(x)
    check_eltype(name, "context", context, T)
    check_rank(name, "context", context, "(C, T, B)", 3)
    C, Tq, B = size(x)::NTuple{3,Int}
    Cc, Tk, Bc = size(context)::NTuple{3,Int}
    Bc == B || reject(:shape_mismatch, name, "context", "batch $B as in x", Bc)
    check_attention_layer(name, "", layer, T, C, Cc)
    Hq = Int(layer.num_heads)
    dims = (Tk, Tq, Hq, B)
    check_options(name, T, dims, call.mask, call.bias, call.scale, call.softcap, call.dropout)
    check_like(name, "head_mask", call.head_mask, Bool, (Hq,))
    if layer.rope === nothing
        good = call.positions === nothing
        good || reject(:invalid_config, name, "positions", "none without a rope", "positions")
    else
        context === x || reject(:invalid_config, name, "context", "none with a rope", "a context")
        check_positions(name, layer.rope.offset, call.positions, Tq, B)
    end
    return nothing
end

# The weights of a MultiHeadAttention of element type T for widths C and Cc.
function check_attention_layer(name::String, prefix::String, layer, T, C::Int, Cc::Int)
    @nospecialize
    check_head_counts(name, layer.num_heads, layer.num_kv_heads)
    Hq, Hkv = layer.num_heads, layer.num_kv_heads
    w_q, w_k, w_v, w_o = layer.w_q, layer.w_k, layer.w_v, layer.w_o
    for (argument, w, heads, width) in (("w_q", w_q, Hq, C), ("w_k", w_k, Hkv, Cc), ("w_v", w_v, Hkv, Cc))
        check_weight(name, prefix * argument, w, T, width)
        good = size(w, 2) % heads == 0
        good || reject(:shape_mismatch, name, prefix * argument, "columns in $heads equal blocks", size(w, 2))
    end
    D, Dv = size(w_q, 2) ÷ Hq, size(w_v, 2) ÷ Hkv
    D >= 1 || reject(:shape_mismatch, name, prefix * "w_q", "a head size of at least 1", D)
    good = size(w_k, 2) == Hkv * D
    good || reject(:shape_mismatch, name, prefix * "w_k", "$(Hkv * D) columns (head size $D)", size(w_k, 2))
    check_weight(name, prefix * "w_o", w_o, T, Hq * Dv)
    b_q, b_k, b_v, b_o = layer.b_q, layer.b_k, layer.b_v, layer.b_o
    for (argument, b, w) in (("b_q", b_q, w_q), ("b_k", b_k, w_k), ("b_v", b_v, w_v), ("b_o", b_o, w_o))
        check_bias(name, prefix * argument, b, w)
    end
    check_like(name, prefix * "q_norm", layer.q_norm, T, (D,))
    check_like(name, prefix * "k_norm", layer.k_norm, T, (D,))
    check_eps(name, "qk_norm_eps", layer.qk_norm_eps)
    return layer.rope === nothing || check_rope_options(name, layer.rope, D)
end

# w_qkv (C, D·(Hq + 2·Hkv)) and its bias, before they are cut apart.
function check_packed(name::String, w_qkv, b_qkv, num_heads, num_kv_heads, packing)
    @nospecialize
    check_head_counts(name, num_heads, num_kv_heads)
    check_choice(name, "packing", packing, ("blocks", "heads"))
    check_float(name, "w_qkv", w_qkv)
    check_weight(name, "w_qkv", w_qkv, eltype(w_qkv))
    check_bias(name, "b_qkv", b_qkv, w_qkv)
    blocks = num_heads + 2 * num_kv_heads
    good = size(w_qkv, 2) % blocks == 0
    good || reject(:shape_mismatch, name, "w_qkv", "columns in $blocks equal blocks", size(w_qkv, 2))
    return nothing
end

# x (C, T, B) and the weights of a MultiHeadLatentAttention.
function check_mla(name::String, layer, x, mask, scale)
    @nospecialize
    check_whole(name, "num_heads", layer.num_heads, 1)
    check_sequence(name, "x", x)
    T, H = eltype(x), layer.num_heads
    C, len, B = size(x)::NTuple{3,Int}
    check_weight(name, "w_dkv", layer.w_dkv, T, C)
    check_weight(name, "w_kr", layer.w_kr, T, C)
    R, Dr = size(layer.w_dkv, 2), size(layer.w_kr, 2)
    R >= 1 || layer.kv_norm === nothing || reject(:shape_mismatch, name, "w_dkv", "a latent of at least 1", R)
    width = C
    if layer.w_dq !== nothing
        check_weight(name, "w_dq", layer.w_dq, T, C)
        width = size(layer.w_dq, 2)
        check_like(name, "q_norm", layer.q_norm, T, (width,))
        good = width >= 1 || layer.q_norm === nothing
        good || reject(:shape_mismatch, name, "w_dq", "a latent of at least 1", width)
    elseif layer.q_norm !== nothing
        reject(:invalid_config, name, "q_norm", "none without w_dq", "an array")
    end
    for (argument, w) in (("w_uk", layer.w_uk), ("w_uv", layer.w_uv))
        check_weight(name, argument, w, T, R)
        good = size(w, 2) % H == 0
        good || reject(:shape_mismatch, name, argument, "columns in $H equal blocks", size(w, 2))
    end
    columns = size(layer.w_uk, 2) + H * Dr
    check_weight(name, "w_q", layer.w_q, T, width)
    good = size(layer.w_q, 2) == columns
    good || reject(:shape_mismatch, name, "w_q", "$columns columns, H·(Dn + Dr)", size(layer.w_q, 2))
    check_weight(name, "w_o", layer.w_o, T, size(layer.w_uv, 2))
    check_like(name, "kv_norm", layer.kv_norm, T, (R,))
    check_eps(name, "eps", layer.eps)
    check_rope_options(name, layer.rope, Dr)
    check_scale(name, scale)
    return check_mask(name, mask, (len, len, Int(H), B))
end

# x (n, ...), n >= 1; weight and bias (n,).
function check_norm(name::String, x, weight, bias, eps)
    @nospecialize
    check_float(name, "x", x)
    good = ndims(x) >= 1 && size(x, 1) >= 1
    good || reject(:shape_mismatch, name, "x", "a first dimension of at least 1", "size $(size(x))")
    check_like(name, "weight", weight, eltype(x), (size(x, 1),))
    check_like(name, "bias", bias, eltype(x), (size(x, 1),))
    return check_eps(name, "eps", eps)
end

function check_norm_layer(name::String, prefix::String, layer, T, n::Int)
    @nospecialize
    check_kind(name, prefix, layer, Norm, "a Norm")
    check_choice(name, "norm", layer.kind, ("layer", "rms"))
    n >= 1 || reject(:shape_mismatch, name, "x", "a width of at least 1", n)
    check_like(name, prefix * "weight", layer.weight, T, (n,))
    check_like(name, prefix * "bias", layer.bias, T, (n,))
    good = layer.kind == "layer" || layer.bias === nothing
    good || reject(:invalid_config, name, prefix * "bias", "none for an RMS norm", "an array")
    return check_eps(name, "eps", layer.eps)
end

function check_swiglu(name::String, a, b, alpha)
    @nospecialize
    check_float(name, "a", a)
    check_exact(name, "b", b, eltype(a), size(a))
    good = is_finite_number(alpha)
    good || reject(:invalid_config, name, "alpha", "a finite number", repr(alpha))
    return nothing
end

# The weights of a FeedForward of element type T for width C.
function check_feed_forward(name::String, prefix::String, layer, T, C::Int)
    @nospecialize
    check_kind(name, prefix, layer, FeedForward, "a FeedForward")
    check_choice(name, "activation", layer.activation, ACTIVATIONS)
    check_weight(name, prefix * "w_1", layer.w_1, T, C)
    F = size(layer.w_1, 2)
    check_weight(name, prefix * "w_2", layer.w_2, T, F)
    size(layer.w_2, 2) == C || reject(:shape_mismatch, name, prefix * "w_2", "$C columns", size(layer.w_2, 2))
    check_bias(name, prefix * "b_1", layer.b_1, layer.w_1)
    check_bias(name, prefix * "b_2", layer.b_2, layer.w_2)
    if layer.activation == "swiglu"
        check_weight(name, prefix * "w_3", layer.w_3, T, C)
        good = size(layer.w_3, 2) == F
        good || reject(:shape_mismatch, name, prefix * "w_3", "$F columns", size(layer.w_3, 2))
        check_bias(name, prefix * "b_3", layer.b_3, layer.w_3)
    else
        good = layer.w_3 === nothing && layer.b_3 === nothing
        good || reject(:invalid_config, name, prefix * "w_3", "none for $(layer.activation)", "an array")
    end
    return nothing
end

# A block of element type T on x of size (C, T, B).
function check_block(name::String, prefix::String, layer, T, dims::NTuple{3,Int}, context, mask, context_mask)
    @nospecialize
    check_kind(name, prefix, layer, Block, "a Block")
    C, len, B = dims
    check_flag(name, prefix * "norm_first", layer.norm_first)
    check_part(name, prefix * "attention.", layer.attention, T, C, C)
    check_mask(name, mask, (len, len, Int(layer.attention.num_heads), B))
    both = (layer.cross === nothing) == (context === nothing)
    both || reject(:invalid_config, name, "context", "a context with cross, and only then", "one of them")
    if context !== nothing
        check_eltype(name, "context", context, T)
        check_rank(name, "context", context, "(C, T, B)", 3)
        Cc, Tk, Bc = size(context)::NTuple{3,Int}
        Bc == B || reject(:shape_mismatch, name, "context", "batch $B as in x", Bc)
        check_part(name, prefix * "cross.", layer.cross, T, C, Cc)
        good = layer.cross.rope === nothing
        good || reject(:invalid_config, name, prefix * "cross.rope", "none with a context", "a rope")
        check_mask(name, context_mask, (Tk, len, Int(layer.cross.num_heads), B))
    elseif context_mask.kv_lengths !== nothing
        reject(:invalid_config, name, "context_lengths", "none without a context", "an array")
    end
    check_feed_forward(name, prefix * "ff.", layer.feed_forward, T, C)
    check_list_of_layers(name, prefix * "norms", layer.norms)
    parts = layer.cross === nothing ? 2 : 3
    count = length(layer.norms)
    count == parts || reject(:invalid_config, name, prefix * "norms", "$parts norms, one a part", count)
    for (n, norm) in enumerate(layer.norms)
        check_norm_layer(name, prefix * "norm_$n.", norm, T, C)
    end
    return nothing
end

check_list_of_layers(name::String, argument::String, @nospecialize(layers)) =
    layers isa Vector{Any} || reject(:invalid_config, name, argument, "a list", typeof(layers))

# An attention whose output goes back to the width of its input.
function check_part(name::String, prefix::String, layer, T, C::Int, Cc::Int)
    @nospecialize
    check_kind(name, prefix, layer, MultiHeadAttention, "a MultiHeadAttention")
    check_attention_layer(name, prefix, layer, T, C, Cc)
    columns = size(layer.w_o, 2)
    columns == C || reject(:shape_mismatch, name, prefix * "w_o", "$C columns", columns)
    return nothing
end

# tokens, segments (T, B) and the tables and blocks of a Transformer.
function check_transformer(name::String, model, tokens, segments, mask)
    @nospecialize
    check_float(name, "embedding", model.embedding)
    check_rank(name, "embedding", model.embedding, "(C, V)", 2)
    T, C = eltype(model.embedding), size(model.embedding, 1)
    check_eltype(name, "tokens", tokens, Int64)
    check_rank(name, "tokens", tokens, "(T, B)", 2)
    check_indices(name, "tokens", tokens, size(model.embedding, 2))
    len, B = size(tokens)::NTuple{2,Int}
    if model.position_embedding !== nothing
        check_table(name, "position_embedding", model.position_embedding, T, C)
        P = size(model.position_embedding, 2)
        len <= P || reject(:invalid_config, name, "tokens", "at most $P positions", len)
    end
    both = (segments === nothing) == (model.segment_embedding === nothing)
    both || reject(:invalid_config, name, "segments", "segments and a table for them", "one of them")
    if segments !== nothing
        check_table(name, "segment_embedding", model.segment_embedding, T, C)
        check_like(name, "segments", segments, Int64, (len, B))
        check_indices(name, "segments", segments, size(model.segment_embedding, 2))
    end
    for (argument, norm) in (("embedding_norm", model.embedding_norm), ("final_norm", model.final_norm))
        norm === nothing || check_norm_layer(name, argument * ".", norm, T, C)
    end
    check_like(name, "unembedding", model.unembedding, T, size(model.embedding))
    check_list_of_layers(name, "blocks", model.blocks)
    for (n, layer) in enumerate(model.blocks)
        check_block(name, "layers.$(n - 1).", layer, T, (C, len, B), nothing, mask, Mask())
    end
    return nothing
end

# (C, indices)
function check_table(name::String, argument::String, @nospecialize(table), @nospecialize(T), C::Int)
    check_eltype(name, argument, table, T)
    check_rank(name, argument, table, "(C, n)", 2)
    size(table, 1) == C || reject(:shape_mismatch, name, argument, "$C rows", size(table, 1))
    return nothing
end

function check_indices(name::String, argument::String, @nospecialize(indices), count::Int)
    for n in indices
        0 <= n < count || reject(:invalid_config, name, argument, "indices from 0 to $(count - 1)", n)
    end
    return nothing
end
