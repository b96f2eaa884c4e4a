"""
The whole family of attention in plain Julia: the readable rung of Rosetta Attention.

Arrays are feature-first. The bytes that a row-major language calls (B, H, T, D) are `(D, T, H, B)` here,
without a copy; a mask that is right-aligned there is left-aligned here; weights of a projection are
`(in, out)`, `y = w' * x`. Array indices are 1-based as everywhere in Julia. *Positions* are 0-based as in
every other language of the project: `q_offset`, `window`, `kv_lengths` and the lengths of a cache mean the
same numbers everywhere.

    q, k, v = (randn(Float32, 64, 10, 8, 1) for _ in 1:3)  # (D, T, H, B)
    output = sdpa(q, k, v; mask = Mask(causal = true))  # (Dv, Tq, Hq, B)

    cache = KVCache(1, 8, 64)
    append!(cache, k, v)
    output = attend(cache, q; mask = Mask(causal = true))  # the same numbers
"""
module RosettaAttention

import LinearAlgebra

export AttentionError, BFloat16, Block, Dropout, FeedForward, Layer, Mask, MultiHeadAttention
export MultiHeadLatentAttention, Norm, Rope, Transformer
export Cache, Codes, CrossCache, KiviCache, KVCache, LatentCache, PagedCache, PagePool, PerHeadCache
export QuantisedCache, RotatingCache
export HeavyHitters, KeyNorm, Policy, SnapKV, WindowPolicy
export DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, RopeScaling, YarnScaling
export BigBird, Blocks, Dilated, Fixed, Global, Pattern, Strided, Window
export append_attend!, decode!, evict!, fork, load!, quantise, read_codes, reorder!, restore, save, shift!
export stats
export alibi, alibi_slopes, alibi_steps, attend, attend_steps, blocked, cache_write, cast, dropout
export dropout_steps
export flash, gated_linear, gelu, layer_norm, layer_norm_steps, lengths, linear_attention, linear_chunked
export linear_recurrent, merge_states, mha_steps, mla_absorbed, mla_steps, num_parameters, philox_words
export relative_bias, relative_bias_steps, reset!, rms_norm, rope, rope_steps, scoring, scoring_steps, sdpa
export sdpa_steps, simd, sinusoidal, sinusoidal_steps, softmax, softmax_lse, sparse, sparse_mask, sparse_steps
export split_kv, structured, structured_steps, swiglu, tracked, transformer_steps, truncate!, varlen, visible

const VERSION_NUMBER = v"0.1.0"

include("errors.jl")
include("bfloat16.jl")
include("json.jl")
include("safetensors.jl")
include("cast.jl")
include("heads.jl")
include("checks.jl")
include("checks_attention.jl")
include("checks_cache.jl")
include("checks_eviction.jl")
include("checks_layers.jl")
include("checks_linear.jl")
include("checks_positions.jl")
include("checks_sparse.jl")
include("philox.jl")
include("dropout.jl")
include("softmax.jl")
include("masks.jl")
include("sdpa.jl")
include("merge.jl")
include("flash.jl")
include("split_kv.jl")
include("intervals.jl")
include("simd_vectors.jl")
include("simd_exp.jl")
include("simd_kernel.jl")
include("simd_turn.jl")
include("simd_few.jl")
include("simd_mask.jl")
include("simd_edge.jl")
include("simd_tile.jl")
include("simd_wave.jl")
include("simd.jl")
include("blocked.jl")
include("varlen.jl")
include("scoring.jl")
include("structured.jl")
include("rope_scaling.jl")
include("rope.jl")
include("sinusoidal.jl")
include("alibi.jl")
include("relative_bias.jl")
include("linear_attention.jl")
include("linear_recurrent.jl")
include("linear_chunked.jl")
include("gated_linear.jl")
include("sparse_patterns.jl")
include("sparse.jl")
include("layer_norm.jl")
include("rms_norm.jl")
include("gelu.jl")
include("swiglu.jl")
include("mha.jl")
include("mla.jl")
include("mla_absorbed.jl")
include("feed_forward.jl")
include("block.jl")
include("transformer.jl")
include("rows.jl")
include("cache.jl")
include("cache_rope.jl")
include("eviction.jl")
include("kv_cache.jl")
include("rotating_cache.jl")
include("page_pool.jl")
include("paged_cache.jl")
include("quantise.jl")
include("quantised_cache.jl")
include("kivi_cache.jl")
include("latent_cache.jl")
include("cross_cache.jl")
include("cache_edit.jl")
include("per_head_cache.jl")
include("cache_file.jl")
include("checks_file.jl")
include("mha_decode.jl")
include("cache_write.jl")

end
