# Attention over the keys of a pattern: only visible pairs are ever scored.
#
#     output_i = Σ_j in keys(i) softmax_j(scale · q_i · k_j) v_j
#
# Letters: B batch, Hq query heads, Hkv key/value heads, Tq and Tk query and key lengths, D and Dv head sizes,
# n keys of one query.
#
# Source: Child et al., "Generating Long Sequences with Sparse Transformers", 2019, section 4.2.

"""
    sparse(q, k, v, pattern; scale = nothing, causal = false)

Attention of `q` `(D, Tq, Hq, B)` over `k` `(D, Tk, Hkv, B)` and `v` `(Dv, Tk, Hkv, B)`, as far as `pattern`,
a [`Pattern`](@ref), lets each query see: an `Array` `(Dv, Tq, Hq, B)`. A query that sees nothing has output
0.

- `scale`: `nothing` = 1/sqrt(D)
- `causal`: and no key after the query

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function sparse(q, k, v, pattern; scale = nothing, causal = false)
    @nospecialize pattern scale causal
    return sparse_steps(q, k, v, pattern; scale = scale, causal = causal).output
end

"""
    sparse_steps(q, k, v, pattern; scale, causal) -> (output, lse, visited)

[`sparse`](@ref) with its log-sum-exp, `(Tq, Hq, B)`, and how many keys each query was scored with, a head:
`Int64`, `(Tq,)`; same errors.
"""
function sparse_steps(q, k, v, pattern; scale = nothing, causal = false)
    @nospecialize pattern scale causal
    check_heads("sparse", q, k, v)
    check_scale("sparse", scale)
    check_flag("sparse", "causal", causal)
    check_pattern("sparse", pattern, size(q, 2), size(k, 2))
    return narrowed(listed_attention(widened(q), widened(k), widened(v), pattern, scale, causal), eltype(q))
end

function listed_attention(q, k, v, pattern, scale, causal::Bool)
    @nospecialize pattern scale
    T = eltype(q)
    D, Tq, Hq, B = size(q)
    Dv, Tk, Hkv, _ = size(v)
    G = Hq ÷ max(Hkv, 1)
    scale = scale_of(T, scale, D)
    output = zeros(T, Dv, Tq, Hq, B)  # (Dv, Tq, Hq, B)
    lse = Array{T}(undef, Tq, Hq, B)  # (Tq, Hq, B)
    visited = zeros(Int64, Tq)  # (Tq,)

    for i in 1:Tq
        # 1. keys: those of the pattern, the same for all heads and rows
        listed = collect(Int, key_list(pattern, i - 1, Tk))::Vector{Int} .+ 1
        keys = causal ? filter(j -> j <= i, listed) : listed  # (n,)
        visited[i] = length(keys)

        for b in 1:B, h in 1:Hq
            # 2. scores: of these keys and no other
            g = fld1(h, G)
            scores = zeros(T, length(keys))  # (n,)
            for (m, j) in enumerate(keys), d in 1:D
                scores[m] += (scale * q[d, i, h, b]) * k[d, j, g, b]
            end

            # 3. softmax: over them
            weights, total = weights_and_lse(scores, nothing)  # (n,), ()
            lse[i, h, b] = total[]

            # 4. weighted sum: of their values
            for (m, j) in enumerate(keys)
                scores[m] == -Inf && continue
                for d in 1:Dv
                    output[d, i, h, b] += weights[m] * v[d, j, g, b]
                end
            end
        end
    end
    return (output = output, lse = lse, visited = visited)
end
