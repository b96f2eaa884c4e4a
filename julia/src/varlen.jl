# Attention of sequences that lie one after the other in one array, without padding.
#
#     sequence s owns the rows cu_seqlens[s] + 1 to cu_seqlens[s + 1], and sees nobody else's
#
# Letters: S sequences, Nq and Nk rows of all queries and of all keys, Hq and Hkv heads, D and Dv head sizes.
#
# Source: Dao, "FlashAttention-2", 2023 (its variable-length interface); Krell et al., "Efficient Sequence
# Packing without Cross-contamination", 2021.

"""
    varlen(q, k, v, cu_seqlens_q, cu_seqlens_k; causal = false, q_offset, window, scale, softcap)
        -> (output, lse)

Attention of `q` `(D, Hq, Nq)` over `k` `(D, Hkv, Nk)` and `v` `(Dv, Hkv, Nk)`, each sequence on its own:
`output` `(Dv, Hq, Nq)`, `lse` `(Hq, Nq)`.

- `cu_seqlens_q`, `cu_seqlens_k`: `Int64`, `(S + 1,)`, from 0 to Nq and Nk; differences are the lengths,
  perhaps 0
- `causal`, `window`: as in [`Mask`](@ref), within each sequence
- `q_offset`: position of each sequence's first query, an integer for all, or `Int64`, `(S,)`; `nothing` = 0
- `scale`, `softcap`: as for [`sdpa`](@ref)

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function varlen(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k;
    causal = false,
    q_offset = nothing,
    window = nothing,
    scale = nothing,
    softcap = nothing
)
    @nospecialize causal q_offset window scale softcap
    mask = Mask(nothing, causal, window, nothing, q_offset)
    check_varlen("varlen", q, k, v, cu_seqlens_q, cu_seqlens_k, mask, scale, softcap)
    wide_q, wide_k, wide_v = widened(q), widened(k), widened(v)
    state = packed_attention(wide_q, wide_k, wide_v, cu_seqlens_q, cu_seqlens_k, mask, scale, softcap)
    return narrowed(state, eltype(q))
end

function packed_attention(q, k, v, ends_q, ends_k, mask::Mask, scale, softcap)
    @nospecialize scale softcap
    T = eltype(q)
    Hq, Nq = size(q, 2), size(q, 3)
    S = length(ends_q) - 1
    offsets = row_offsets(mask.q_offset, S)::Vector{Int}  # (S,)
    output = zeros(T, size(v, 1), Hq, Nq)  # (Dv, Hq, Nq)
    lse = fill(T(-Inf), Hq, Nq)  # (Hq, Nq)

    for s in 1:S
        # 1. slice: the rows of this sequence, as a batch of one
        rows_q, rows_k = ends_q[s]+1:ends_q[s+1], ends_k[s]+1:ends_k[s+1]
        one_q = one_row(q, rows_q)  # (D, Tq, Hq, 1)
        one_k, one_v = one_row(k, rows_k), one_row(v, rows_k)  # (D, Tk, Hkv, 1), (Dv, Tk, Hkv, 1)

        # 2. attend: an attention of its own, with positions from 0 on
        own = Mask(nothing, mask.causal, mask.window, nothing, offsets[s])
        steps = attention(one_q, one_k, one_v, own, nothing, scale, softcap, nothing, nothing)

        # 3. place: heads before rows again
        output[:, :, rows_q] = permutedims(steps.output[:, :, :, 1], (1, 3, 2))  # (Dv, Hq, Tq)
        lse[:, rows_q] = permutedims(steps.lse[:, :, 1])  # (Hq, Tq)
    end
    return (output = output, lse = lse)
end

# Some rows of (n, H, N) as (n, T, H, 1).
one_row(x, rows) = permutedims(reshape(x[:, :, rows], size(x, 1), size(x, 2), length(rows), 1), (1, 3, 2, 4))
