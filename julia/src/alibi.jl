# Attention with linear biases: the further away a key, the lower its score, at a rate of each head's own.
#
#     output = scores - slope_h · abs(p - t),   p the position of the query, t that of the key
#
# Letters: B batch, H heads, Tq and Tk query and key lengths.
#
# Source: Press et al., "Train Short, Test Long", 2022, section 3; its code, for heads that are no power of
# two.

"""
    alibi(scores; q_offset = 0)

`scores` `(Tk, Tq, H, B)` plus the biases of their distances. `q_offset`: position of the first query, counted
from 0.

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
alibi(scores; q_offset = 0) = alibi_steps(scores; q_offset = q_offset).output

"""
    alibi_steps(scores; q_offset = 0) -> (output, slopes, bias)

[`alibi`](@ref) with the `slopes`, `(H,)`, and the `bias`, `(Tk, Tq, H)`; same errors.
"""
function alibi_steps(scores; q_offset = 0)
    @nospecialize q_offset
    check_scores("alibi", scores, q_offset)
    return narrowed(with_slopes(widened(scores), position_of(q_offset)), eltype(scores))
end

"""
    alibi_slopes(num_heads)

The slopes as `Vector{Float64}`: 2^(-8h/H) for head h of 1:H when H is a power of two. Otherwise those of the
next smaller power m, then every other one of those of 2m.

Throws `AttentionError`: invalid_config.
"""
function alibi_slopes(num_heads)
    check_whole("alibi_slopes", "num_heads", num_heads, 0)
    H = Int(num_heads)
    H == 0 && return Float64[]
    slopes(n) = [2.0^(-8h / n) for h in 1:n]
    m = prevpow(2, H)
    return [slopes(m); slopes(2m)[1:2:2*(H-m)]]
end

function with_slopes(scores::AbstractArray{T,4}, q_offset::Int) where {T}
    Tk, Tq, H, _ = size(scores)

    # 1. slopes: in Float64, rounded once
    slopes = T.(alibi_slopes(H))  # (H,)

    # 2. distances: between positions, whichever comes first
    distances = [abs(i - 1 + q_offset - (j - 1)) for j in 1:Tk, i in 1:Tq]  # (Tk, Tq)

    # 3. add: nothing at the query's own position
    bias = [-slopes[h] * T(distances[j, i]) for j in 1:Tk, i in 1:Tq, h in 1:H]  # (Tk, Tq, H)
    output = scores .+ bias  # (Tk, Tq, H, B)
    return (output = output, slopes = slopes, bias = bias)
end
