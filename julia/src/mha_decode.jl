# One step of a decoder: multi-head attention of new tokens over a cache of all that came before.
#
# Letters: B batch, T new tokens, C model width, Hq query heads, Hkv key/value heads, D and Dv head sizes,
# Cout width of the output.
#
# Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 3 (prefill and decode).

"""
    decode!(layer, x, cache; lengths, padding, mask = Mask(), bias, scale, softcap)

Append the keys and values of `x` `(C, T, B)` to a cache of the sizes of the [`MultiHeadAttention`](@ref),
and attend causally: an `Array` `(Cout, T, B)`. Prefill or a single token, the numbers are those of a call
with all of `x`.

Rotation is by the layer or by the cache, each token at its position in the cache, not by both. `lengths` and
`padding` are those of `append!`; `mask`, `bias`, `scale`, `softcap` those of [`attend`](@ref).

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config, capacity_exceeded.
"""
function decode!(
    layer::MultiHeadAttention,
    x,
    cache::Cache;
    lengths = nothing,
    padding = "right",
    mask = Mask(),
    bias = nothing,
    scale = nothing,
    softcap = nothing
)
    @nospecialize lengths padding mask bias scale softcap
    call = AppendCall(lengths, padding, nothing)
    counts = check_decode("decode", layer, x, cache, call, mask, bias, scale, softcap)
    wide = widened(layer)
    rows = row_counters(cache)
    at = new_positions(rows, size(x, 2), counts, padding)  # (T, B)
    q, k, v = project_heads(wide, widened(x), widened(x), at)
    from = first_positions(rows, size(x, 2), counts, padding)  # (B,)
    causal = Mask(mask.keep, true, mask.window, nothing, something(mask.q_offset, from))
    write!(cache, planned(cache, narrowed(k, eltype(x)), narrowed(v, eltype(x)), call))
    steps = attend_held(cache, q, causal, widened(bias), scale, softcap)
    track!(cache, steps.weights)
    heads = steps.output  # (Dv, T, Hq, B)
    return narrowed(linear(wide.w_o, merge_heads(heads), wide.b_o), eltype(x))  # (Cout, T, B)
end
