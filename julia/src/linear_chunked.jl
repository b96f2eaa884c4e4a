# Linear attention chunk by chunk: parallel inside of a chunk, recurrent from one to the next.
#
#     output_i = (Σ_j (f(q_i) · f(k_j)) v_j + S f(q_i)) / (Σ_j f(q_i) · f(k_j) + z · f(q_i))
#
# over the keys j <= i of the chunk; then the whole chunk joins the state, S += Σ_j v_j f(k_j)', z += Σ_j
# f(k_j).
#
# The work is that of the recurrence, in pieces large enough for products of matrices.
#
# Source: Hua et al., "Transformer Quality in Linear Time", 2022, section 3.3; Yang et al., "Gated Linear
# Attention Transformers", 2024, section 2.2.

"""
    linear_chunked(q, k, v; causal = false, state, norm, chunk = 64) -> (output, state, norm)

The same as [`linear_attention`](@ref), `chunk` >= 1 positions at a time; same errors.
"""
function linear_chunked(q, k, v; causal = false, state = nothing, norm = nothing, chunk = 64)
    @nospecialize causal state norm chunk
    check_linear("linear_chunked", q, k, v, causal, state, norm)
    check_whole("linear_chunked", "chunk", chunk, 1)
    inputs = (widened(q), widened(k), widened(v), causal, widened(state), widened(norm))
    return narrowed(linear_chunks(inputs..., Int(chunk)), eltype(q))
end

function linear_chunks(q, k, v, causal::Bool, state, norm, chunk::Int)
    @nospecialize state norm
    T = eltype(q)
    D, Tq, Hq, B = size(q)
    Dv, Tk, Hkv, _ = size(v)
    G = Hq ÷ max(Hkv, 1)
    S, z = linear_state(T, (Dv, D, Hkv, B), state, norm)  # (Dv, D, Hkv, B), (D, Hkv, B)
    output = zeros(T, Dv, Tq, Hq, B)  # (Dv, Tq, Hq, B)

    # 1. feature map: of every query and key
    fq, fk = map(feature, q), map(feature, k)  # (D, Tq, Hq, B), (D, Tk, Hkv, B)

    for b in 1:B, g in 1:Hkv
        causal || write_chunk!(S, z, fk, v, 1:Tk, g, b)
        # 2. chunk: queries, and the keys at the same positions when each sees its own past
        for rows in tiles(1:Tq, chunk)
            for h in (g-1)*G+1:g*G, i in rows
                # 3. inside: the keys of the chunk, up to this query
                sums, total = zeros(T, Dv), zero(T)  # (Dv,)
                for j in (causal ? (first(rows):i) : (1:0))
                    similarity = zero(T)
                    for d in 1:D
                        similarity += fq[d, i, h, b] * fk[d, j, g, b]
                    end
                    total += similarity
                    for e in 1:Dv
                        sums[e] += similarity * v[e, j, g, b]
                    end
                end

                # 4. before: all keys of the chunks before, from the state; without causal, all there are
                total += read_state!(sums, S, z, fq, i, h, g, b)

                # 5. normalise: 0 where nothing was seen
                output[:, i, h, b] = divided(sums, total)
            end

            # 6. carry: the chunk joins the state
            causal && write_chunk!(S, z, fk, v, rows, g, b)
        end
    end
    return (output = output, state = S, norm = z)
end

function write_chunk!(S, z, fk, v, rows::UnitRange{Int}, g::Int, b::Int)
    for j in rows
        write_state!(S, z, fk, v, j, g, b)
    end
end
