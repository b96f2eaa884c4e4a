# Linear attention as a recurrence: the state is written and read key by key, and nothing grows with the
# length.
#
#     S += v_j f(k_j)',   z += f(k_j),   output_i = S f(q_i) / (z · f(q_i))
#
# Source: Katharopoulos et al., "Transformers are RNNs", 2020, section 3.4.

"""
    linear_recurrent(q, k, v; causal = false, state, norm) -> (output, state, norm)

The same as [`linear_attention`](@ref), one position at a time; same errors.
"""
function linear_recurrent(q, k, v; causal = false, state = nothing, norm = nothing)
    @nospecialize causal state norm
    check_linear("linear_recurrent", q, k, v, causal, state, norm)
    inputs = (widened(q), widened(k), widened(v), causal, widened(state), widened(norm))
    return narrowed(linear_recurrence(inputs...), eltype(q))
end

function linear_recurrence(q, k, v, causal::Bool, state, norm)
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
        written = 0
        # One step more than there are queries: it writes what nobody reads.
        for (i, last_key) in enumerate([keys_seen(causal, Tq, Tk); Tk])
            # 2. write: the keys that this query sees, and none before it did
            for j in written+1:last_key
                write_state!(S, z, fk, v, j, g, b)
            end
            written = last_key
            i > Tq && break

            for h in (g-1)*G+1:g*G
                # 3. read: the state as it stands now
                sums = zeros(T, Dv)  # (Dv,)
                total = read_state!(sums, S, z, fq, i, h, g, b)

                # 4. normalise: 0 where nothing was seen
                output[:, i, h, b] = divided(sums, total)
            end
        end
    end
    return (output = output, state = S, norm = z)
end
