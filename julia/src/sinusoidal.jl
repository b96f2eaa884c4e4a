# Sinusoidal positions: a table of sines and cosines, added to the input.
#
#     table of pair i = (sin, cos)(position · base^(-2i/C))
#
# Letters: B batch, T length, C width; pair i of 0:C/2-1.
#
# Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.5.

"""
    sinusoidal(x; positions = nothing, offset = nothing, base = 10000, halves = false)

`x` `(C, T, B)` plus its table: an `Array` of the same size.

- `positions`: `Int64`, `(T, B)`, counted from 0; `nothing` = from `offset` on
- `offset`: position of the first row, `nothing` = 0; only without positions
- `halves`: false = sine and cosine of a pair are neighbours; true = all sines, then all cosines

Throws `AttentionError`: shape_mismatch for an odd C, dtype_mismatch, invalid_config.
"""
function sinusoidal(x; positions = nothing, offset = nothing, base = 10000.0, halves = false)
    @nospecialize positions offset base halves
    return sinusoidal_steps(x; positions = positions, offset = offset, base = base, halves = halves).output
end

"""
    sinusoidal_steps(x; positions, offset, base, halves) -> (output, table)

[`sinusoidal`](@ref) with its table, `(C, T, B)`; same errors.
"""
function sinusoidal_steps(x; positions = nothing, offset = nothing, base = 10000.0, halves = false)
    @nospecialize positions offset base halves
    check_sinusoidal("sinusoidal", x, positions, offset, base, halves)
    at = positions === nothing ? counted(offset, size(x, 2), size(x, 3)) : Matrix{Int64}(positions)  # (T, B)
    return narrowed(with_positions(widened(x), at, Float64(base), halves), eltype(x))
end

function with_positions(x, positions::Matrix{Int64}, base::Float64, halves::Bool)
    T = eltype(x)
    C, len, B = size(x)
    half = C ÷ 2
    table = Array{T}(undef, C, len, B)  # (C, T, B)
    for b in 1:B, t in 1:len, i in 0:half-1
        # 1. angles: in Float64 whatever the type
        angle = positions[t, b] * base^(-2i / C)

        # 2. table: rounded once
        first, second = halves ? (i + 1, i + 1 + half) : (2i + 1, 2i + 2)
        table[first, t, b] = sin(angle)
        table[second, t, b] = cos(angle)
    end

    # 3. add: to every row
    output = x .+ table  # (C, T, B)
    return (output = output, table = table)
end
