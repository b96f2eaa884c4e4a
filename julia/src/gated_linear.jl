# Linear recurrences with a state that forgets (gates) and corrects itself (delta rules).
#
#     linear        S = S + v k'
#     gated         S = S diag(e^decay) + v k'
#     delta         S = S + beta (v - S k) k'
#     gated_delta   S = S diag(e^decay), then as delta;      output = S (scale · q) in all of them
#
# There is no feature map and no normaliser: what keeps the numbers in bounds is the gate or the correction.
#
# Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, T length, D and Dv head sizes.
#
# Sources: Yang et al., "Gated Linear Attention Transformers", 2024; Schlag et al., "Linear Transformers Are
# Secretly Fast Weight Programmers", 2021 (delta); Yang et al., "Gated Delta Networks", 2025.

const RULES = ("linear", "gated", "delta", "gated_delta")

"""
    gated_linear(q, k, v; rule = "linear", state, decay, beta, scale) -> (output, state)

The recurrence over `q` `(D, T, Hq, B)`, `k` `(D, T, Hkv, B)` and `v` `(Dv, T, Hkv, B)`: `output` `(Dv, T, Hq,
B)`, and the `state` after the last position, `(Dv, D, Hkv, B)`.

- `rule`: "linear", "gated", "delta" or "gated_delta"
- `state`: that of an earlier call; `nothing` = 0
- `decay`: for the gated rules, the logarithm of what is kept of each channel, `(D, T, Hkv, B)` or `(1, T,
  Hkv, B)`
- `beta`: for the delta rules, how much of the error is corrected, `(1, T, Hkv, B)` or `(1, T, 1, B)`
- `scale`: `nothing` = 1/sqrt(D)

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function gated_linear(
    q, k, v; rule = "linear", state = nothing, decay = nothing, beta = nothing, scale = nothing
)
    @nospecialize rule state decay beta scale
    check_gated("gated_linear", q, k, v, rule, state, decay, beta, scale)
    inputs = (widened(q), widened(k), widened(v), widened(state), widened(decay), widened(beta), scale)
    return narrowed(gated_recurrence(inputs...), eltype(q))
end

function gated_recurrence(q, k, v, state, decay, beta, scale)
    @nospecialize state decay beta scale
    T = eltype(q)
    D, len, Hq, B = size(q)
    Dv, _, Hkv, _ = size(v)
    G = Hq ÷ max(Hkv, 1)
    scale = scale_of(T, scale, D)
    S = state === nothing ? zeros(T, Dv, D, Hkv, B) : Array{T,4}(state)  # (Dv, D, Hkv, B)
    output = zeros(T, Dv, len, Hq, B)  # (Dv, T, Hq, B)

    for b in 1:B, g in 1:Hkv, t in 1:len
        memory = view(S, :, :, g, b)  # (Dv, D)
        key, value = k[:, t, g, b], v[:, t, g, b]  # (D,), (Dv,)

        # 1. decay: each channel of the key keeps its share of what was written
        forget!(memory, part(decay, 1:D, t, g, b))

        # 2. correct: not the value is written, but what the memory gets wrong about it
        value = correction(memory, key, value, part(beta, 1, t, g, b))::Vector{T}  # (Dv,)

        # 3. write: one outer product
        for d in 1:D, e in 1:Dv
            memory[e, d] += value[e] * key[d]
        end

        # 4. read: every query of the group, after the write
        for h in (g-1)*G+1:g*G, d in 1:D, e in 1:Dv
            output[e, t, h, b] += memory[e, d] * (scale * q[d, t, h, b])
        end
    end
    return (output = output, state = S)
end

forget!(memory, ::Nothing) = memory
forget!(memory, decay) = memory .*= exp.(reshape(decay, 1, :))

correction(memory, key, value, ::Nothing) = value
function correction(memory, key, value, beta)
    wrong = copy(value)
    for d in 1:length(key), e in 1:length(value)
        wrong[e] -= memory[e, d] * key[d]
    end
    return beta[] .* wrong
end
