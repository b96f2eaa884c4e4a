"""
Attention, multi-head attention and the KV cache in plain Julia: the readable rung of Rosetta Attention.

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

export AttentionError, KVCache, Mask, MhaSteps, MultiHeadAttention, Steps
export attend, attend_steps, lengths, reset!, truncate!
export mha_steps, sdpa, sdpa_steps, softmax, softmax_lse, visible

const VERSION_NUMBER = v"0.1.0"

include("errors.jl")
include("checks.jl")
include("softmax.jl")
include("masks.jl")
include("sdpa.jl")
include("mha.jl")
include("kv_cache.jl")

end
