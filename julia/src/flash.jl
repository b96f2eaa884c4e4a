# Scaled dot-product attention tile by tile: the same numbers as sdpa, without a table of scores.
#
#     a state (top, total, sums) a query: top = the largest score so far, total = Σ exp(s_j - top),
#     sums = Σ exp(s_j - top) · v_j;   output = sums / total,   lse = top + log(total)
#
# When a tile raises `top`, what was summed before shrinks by exp(old top - new top). Memory beside the result
# is one tile of scores, so it does not grow with Tq · Tk; a tile that nobody sees is not read at all.
#
# Letters: B batch, Hq query heads, G query heads a KV head, Tq and Tk query and key lengths, D and Dv head
# sizes.
#
# Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Rabe and Staats,
# "Self-attention Does Not Need O(n²) Memory", 2021; Dao et al., "FlashAttention", 2022.

"""
    flash(q, k, v; mask = Mask(), bias, scale, softcap, sinks, dropout, block_q = 64, block_k = 64)
        -> (output, lse)

[`sdpa`](@ref) in tiles of `block_q` queries and `block_k` keys; same arguments and errors. `output` is `(Dv,
Tq, Hq, B)`, `lse` `(Tq, Hq, B)`.
"""
function flash(
    q,
    k,
    v;
    mask = Mask(),
    bias = nothing,
    scale = nothing,
    softcap = nothing,
    sinks = nothing,
    dropout = nothing,
    block_q = 64,
    block_k = 64
)
    @nospecialize mask bias scale softcap sinks dropout block_q block_k
    check_sdpa("flash", q, k, v, mask, bias, scale, softcap, sinks, dropout)
    check_whole("flash", "block_q", block_q, 1)
    check_whole("flash", "block_k", block_k, 1)
    tiling = Tiling(1:size(k, 2), Int(block_q), Int(block_k))
    wide_q, wide_k, wide_v = widened(q), widened(k), widened(v)
    bias, sinks = widened(bias), widened(sinks)
    state = tiled_attention(wide_q, wide_k, wide_v, tiling, mask, bias, scale, softcap, sinks, dropout)
    return narrowed(state, eltype(q))
end

# Which keys are attended to, and the sizes of a tile.
struct Tiling
    keys::UnitRange{Int}
    block_q::Int
    block_k::Int
end

function tiled_attention(q, k, v, tiling::Tiling, mask, bias, scale, softcap, sinks, dropout)
    @nospecialize mask bias scale softcap sinks dropout
    T = eltype(q)
    D, Tq, Hq, B = size(q)
    Dv, Tk, Hkv, _ = size(v)
    G = Hq ÷ max(Hkv, 1)
    scale = scale_of(T, scale, D)
    rule = mask_rule(mask, Tk, B)
    bias = four_dims(bias)
    output = zeros(T, Dv, Tq, Hq, B)  # (Dv, Tq, Hq, B)
    lse = Array{T}(undef, Tq, Hq, B)  # (Tq, Hq, B)
    set_sinks!(lse, per_head(sinks))

    for b in 1:B, h in 1:Hq, queries in tiles(1:Tq, tiling.block_q)
        # 1. query tile: an empty state for each of its queries
        g = fld1(h, G)
        count = length(queries)
        top, total = fill(T(-Inf), count), zeros(T, count)  # (queries,)
        sums = zeros(T, Dv, count)  # (Dv, queries)

        for keys in tiles(tiling.keys, tiling.block_k)
            # 2. key tile: who sees whom in it
            shown = visible_tile(rule, keys, queries, h, b)  # (keys, queries)
            hide_minus_infinity!(shown, part(bias, keys, queries, h, b))
            any(shown) || continue

            # 3. scores: as in sdpa, with hidden slots at -Inf
            scores = zeros(T, length(keys), count)  # (keys, queries)
            for (n, i) in enumerate(queries), (m, j) in enumerate(keys), d in 1:D
                scores[m, n] += (scale * q[d, i, h, b]) * k[d, j, g, b]
            end
            biased = add_bias(cap(scores, softcap), part(bias, keys, queries, h, b))::Matrix{T}
            logits = ifelse.(shown, biased, T(-Inf))

            for (n, i) in enumerate(queries)
                # 4. maximum: of all tiles so far; a query that has seen nothing is shifted by 0
                highest = top[n]
                for m in 1:length(keys)
                    highest = max(highest, logits[m, n])
                end
                shift = highest == -Inf ? zero(T) : highest

                # 5. rescale: what was summed under the old maximum
                shrink = exp(top[n] - shift)
                top[n] = highest
                total[n] *= shrink
                for d in 1:Dv
                    sums[d, n] *= shrink
                end

                # 6. accumulate: the tile's visible keys; dropout takes from the sums, not from the total
                slot = slot_number(first(keys), i, h, b, (Tk, Tq, Hq))
                factors = keep_factors(T, dropout, slot, length(keys))::Vector{T}  # (keys,)
                for (m, j) in enumerate(keys)
                    logits[m, n] == -Inf && continue
                    weight = exp(logits[m, n] - shift)
                    total[n] += weight
                    for d in 1:Dv
                        sums[d, n] += (weight * factors[m]) * v[d, j, g, b]
                    end
                end
            end
        end

        # 7. finish: the sink joins the sum, then one division a query
        for (n, i) in enumerate(queries)
            sink = lse[i, h, b]
            highest = max(top[n], sink)
            shift = highest == -Inf ? zero(T) : highest
            shrink = exp(top[n] - shift)
            whole = total[n] * shrink + exp(sink - shift)
            whole = whole == 0 ? one(T) : whole
            for d in 1:Dv
                output[d, i, h, b] = sums[d, n] * shrink / whole
            end
            lse[i, h, b] = highest + log(whole)
        end
    end
    return (output = output, lse = lse)
end

# A range in pieces of `size`, the last one perhaps shorter.
tiles(range::UnitRange{Int}, size::Int) =
    (from:min(from + size - 1, last(range)) for from in first(range):size:last(range))

# The number of an element of (Tk, Tq, Hq, B), counted from 0.
slot_number(j, i, h, b, (Tk, Tq, Hq)) = (((b - 1) * Hq + h - 1) * Tq + i - 1) * Tk + j - 1
