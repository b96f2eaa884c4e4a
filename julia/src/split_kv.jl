# Scaled dot-product attention over parts of the keys, one after the other, merged in the end.
#
# A decode step has one query and many keys: the only work to share among processors is that over the keys.
# Each part gives a state (output, lse) of its own; which states are merged first changes roundings alone.
#
# Source: Dao et al., "Flash-Decoding for long-context inference", 2023.

"""
    split_kv(q, k, v; mask = Mask(), bias, scale, softcap, sinks, dropout, splits = 4) -> (output, lse)

[`sdpa`](@ref) over `splits` consecutive parts of the keys, some of which may be empty; same arguments and
errors. `output` is `(Dv, Tq, Hq, B)`, `lse` `(Tq, Hq, B)`.
"""
function split_kv(
    q,
    k,
    v;
    mask = Mask(),
    bias = nothing,
    scale = nothing,
    softcap = nothing,
    sinks = nothing,
    dropout = nothing,
    splits = 4
)
    @nospecialize mask bias scale softcap sinks dropout splits
    check_sdpa("split_kv", q, k, v, mask, bias, scale, softcap, sinks, dropout)
    check_whole("split_kv", "splits", splits, 1)
    wide_q, wide_k, wide_v = widened(q), widened(k), widened(v)
    bias, sinks = widened(bias), widened(sinks)
    state = split_attention(wide_q, wide_k, wide_v, Int(splits), mask, bias, scale, softcap, sinks, dropout)
    return narrowed(state, eltype(q))
end

function split_attention(q, k, v, splits::Int, mask, bias, scale, softcap, sinks, dropout)
    @nospecialize mask bias scale softcap sinks dropout
    T = eltype(q)
    Tq, Hq, B = size(q, 2), size(q, 3), size(q, 4)
    Dv, Tk = size(v, 1), size(v, 2)
    state = (output = zeros(T, Dv, Tq, Hq, B), lse = fill(T(-Inf), Tq, Hq, B))  # (Dv, Tq, Hq, B), (Tq, Hq, B)

    # 1. split: consecutive parts of one length, the last ones shorter or empty
    for keys in tiles(1:Tk, max(cld(Tk, splits), 1))
        # 2. attend: to one part, without the sinks, which are no part's own
        tiling = Tiling(keys, Tq + 1, 64)
        part = tiled_attention(q, k, v, tiling, mask, bias, scale, softcap, nothing, dropout)

        # 3. merge: with what the parts before have given
        state = merged(state.output, state.lse, part.output, part.lse)
    end

    # 4. sink: a state with a logit and no value
    sink_lse = similar(state.lse)  # (Tq, Hq, B)
    set_sinks!(sink_lse, per_head(sinks))
    return merged(state.output, state.lse, zero(state.output), sink_lse)
end
