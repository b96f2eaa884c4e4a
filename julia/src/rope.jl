# Rotary positions: each pair of channels is turned by an angle that grows with the position.
#
#     (a, b) becomes (a cos - b sin, a sin + b cos),   angle of pair i = position · base^(-2i/R)
#
# The dot product of a query and a key then depends on the distance of their positions alone.
#
# Letters: B batch, T length, H heads, D head size, R rotated channels, pair i of 0:R/2-1 is (i, i + R/2), or
# (2i, 2i + 1) when interleaved.
#
# Source: Su et al., "RoFormer", 2021, section 3.2.2.

"""
    Rope(; base = nothing, interleaved = false, rotary_dim = nothing, offset = nothing, scaling = nothing)

How to rotate.

- `base`: `nothing` = 10000
- `interleaved`: which two channels are a pair: neighbours, or those half of R apart
- `rotary_dim`: R, even; `nothing` = D. Channels from R on pass through
- `offset`: position of the first row, `nothing` = 0; only when no positions are given
- `scaling`: a [`RopeScaling`](@ref), or `nothing`
"""
Base.@kwdef struct Rope
    # Any value fits, so that a wrong one is named by the call it is given to.
    base = nothing
    interleaved = false
    rotary_dim = nothing
    offset = nothing
    scaling = nothing

    function Rope(base, interleaved, rotary_dim, offset, scaling)
        @nospecialize
        return new(base, interleaved, rotary_dim, offset, scaling)
    end
end

"""
    rope(x, options = Rope(); positions = nothing, cos = nothing, sin = nothing)

`x` `(D, T, H, B)`, rotated: an `Array` of the same size.

- `positions`: `Int64`, `(T, B)`, counted from 0; `nothing` = from `options.offset` on
- `cos`, `sin`: tables `(R/2, P)`, column p + 1 for position p, in place of `options.base` and
  `options.scaling`

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function rope(x, options = Rope(); positions = nothing, cos = nothing, sin = nothing)
    @nospecialize options positions cos sin
    return rotation(x, options, positions, cos, sin).output
end

"""
    rope_steps(x, options = Rope(); positions, cos, sin) -> (output, cos, sin)

[`rope`](@ref) with the cosines and sines that it used, `(R/2, T, B)`; same errors.
"""
function rope_steps(x, options = Rope(); positions = nothing, cos = nothing, sin = nothing)
    @nospecialize options positions cos sin
    return rotation(x, options, positions, cos, sin)
end

function rotation(x, options, positions, cosines, sines)
    @nospecialize options positions cosines sines
    check_rope("rope", x, options, positions, cosines, sines)
    wide = widened(x)
    at = rope_positions(options, positions, size(x, 2), size(x, 4))  # (T, B)
    cosines, sines = cosines === nothing ?
        rope_tables(eltype(wide), options, rotary_dim(options, size(x, 1)), at) :
        (rows_at(widened(cosines), at), rows_at(widened(sines), at))  # (R/2, T, B)
    output = rotated(wide, cosines, sines, options.interleaved)
    return narrowed((output = output, cos = cosines, sin = sines), eltype(x))
end

function rope_tables(::Type{T}, options::Rope, R::Int, positions::Matrix{Int64}) where {T}
    len, B = size(positions)
    cosines, sines = Array{T}(undef, R ÷ 2, len, B), Array{T}(undef, R ÷ 2, len, B)  # (R/2, T, B)
    base = Float64(something(options.base, 10000))

    # 1. frequencies: from 1 down to almost 1/base
    frequencies = rope_frequencies(base, R)  # (R/2,)

    for b in 1:B
        # 2. scaling: it may depend on the length, which is the row's own
        row_length = reduce(max, view(positions, :, b); init = -1) + 1.0  # a float does not wrap around
        row_frequencies, factor = scaled(options.scaling, frequencies, R, base, row_length)

        # 3. angles: in Float64 whatever the type; a cosine of a rounded angle is another angle's
        for t in 1:len
            angles = positions[t, b] .* row_frequencies  # (R/2,)
            cosines[:, t, b] = factor .* cos.(angles)
            sines[:, t, b] = factor .* sin.(angles)
        end
    end
    return cosines, sines
end

rope_frequencies(base::Float64, R::Int) = [base^(-2i / R) for i in 0:R÷2-1]

# 4. rotate: the pairs of each head alike
function rotated(x::AbstractArray{T,4}, cosines, sines, interleaved::Bool)::Array{T,4} where {T}
    _, len, H, B = size(x)
    half = size(cosines, 1)
    output = Array(x)  # (D, T, H, B)
    for b in 1:B, h in 1:H, t in 1:len, i in 1:half
        first, second = interleaved ? (2i - 1, 2i) : (i, i + half)
        a, c = x[first, t, h, b], x[second, t, h, b]
        output[first, t, h, b] = a * cosines[i, t, b] - c * sines[i, t, b]
        output[second, t, h, b] = a * sines[i, t, b] + c * cosines[i, t, b]
    end
    return output
end

rotary_dim(options::Rope, D::Int) = options.rotary_dim === nothing ? D : Int(options.rotary_dim)

rope_positions(options::Rope, ::Nothing, len::Int, batch::Int) = counted(options.offset, len, batch)
rope_positions(::Rope, positions, ::Int, ::Int) = Matrix{Int64}(positions)

# Positions in order, for every row the same.
counted(offset, len::Int, batch::Int) = Int64[position_of(offset) + t for t in 0:len-1, b in 1:batch]

# The columns of a table at the positions: (R/2, P) to (R/2, T, B).
rows_at(table, positions::Matrix{Int64}) = table[:, positions .+ 1]
