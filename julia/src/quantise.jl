# Keys and values in fewer bits: the formats in which a cache may round them, and the way back.
#
#     code = round((x - zero) / scale),   value = code · scale + zero
#
# Channels come in groups, each of one token and head, that share a scale; the float formats need none. All
# arithmetic is in Float32, operation by operation, so that codes are the same bits in every language.
#
# Letters: n channels, W numbers that hold their codes, groups of them.
#
# Sources: Dettmers et al., "LLM.int8()", 2022, section 2 (absmax and zero point); Micikevicius et al., "FP8
# Formats for Deep Learning", 2022 (E4M3).

const FORMATS = ("f16", "bf16", "int8", "int4", "fp8_e4m3")

"""
    Codes

What [`quantise`](@ref) gives: `codes` `(W, ...)`, `scale` and `zero` `(groups, ...)`, which have no rows
where a format has no scale or no zero point; and how they were made: `format`, `group`, `zero_point`, and
`channels`, n.
"""
struct Codes
    codes::Array  # Float16, BFloat16, Int8 or UInt8
    scale::Array{Float32}
    zero::Array{Float32}
    format::String
    group::Int
    zero_point::Bool
    channels::Int
end

"""
    quantise(x, format; group = nothing, zero_point = false) -> Codes

`x` `(n, ...)`, in Float32, as codes of a `format`:

- "f16", "bf16": rounded half to even
- "fp8_e4m3": the same, magnitudes beyond 448 become 448; a byte each
- "int8": -127..127, the largest magnitude of a group is 127; "int4": -7..7, two codes a byte, the even
  channel in the low four bits
- with `zero_point`: "int8" 0..255, "int4" 0..15, from a group's smallest value to its largest

`group`: how many consecutive channels share a scale, the last ones perhaps fewer; `nothing` = n. A group
whose values are all one has scale 0, and codes 0.

Throws `AttentionError`: dtype_mismatch, shape_mismatch, invalid_config, which is also due for a value that
is not finite in an integer format.
"""
function quantise(x, format; group = nothing, zero_point = false)
    @nospecialize
    check_quantise("quantise", x, format, group, zero_point)
    return quantised(x, empty_codes(format, size(x, 1), group, zero_point))
end

"""
    restore(codes::Codes)

The values that [`Codes`](@ref) stand for: an `Array{Float32}` `(n, ...)`.
"""
restore(codes::Codes) = restored(codes)

# Without anything in them: a format, and what belongs to it.
function empty_codes(format, channels::Int, group, zero_point::Bool)
    @nospecialize format group
    share = group === nothing ? max(channels, 1) : Int(group)
    none = zeros(Float32, 0, 0)
    return Codes(UInt8[], none, none, format, share, zero_point, channels)
end

with_arrays(as::Codes, codes, scale, zero) =
    Codes(codes, scale, zero, as.format, as.group, as.zero_point, as.channels)

has_scale(format) = format == "int8" || format == "int4"
code_type(codes::Codes) = code_type(codes.format, codes.zero_point)
code_type(format, zero_point::Bool) =
    format == "f16" ? Float16 : format == "bf16" ? BFloat16 : format == "int8" && !zero_point ? Int8 : UInt8
code_width(codes::Codes) = codes.format == "int4" ? cld(codes.channels, 2) : codes.channels
group_count(codes::Codes) = cld(codes.channels, codes.group)
scale_count(codes::Codes) = has_scale(codes.format) ? group_count(codes) : 0
zero_count(codes::Codes) = codes.zero_point ? group_count(codes) : 0
group_channels(codes::Codes, g::Int) = (g-1)*codes.group+1:min(g * codes.group, codes.channels)

# The smallest and the largest code of an integer format.
function code_range(codes::Codes)
    codes.zero_point && return 0, codes.format == "int8" ? 255 : 15
    largest = codes.format == "int8" ? 127 : 7
    return -largest, largest
end

# x in the format of `as`.
function quantised(x, as::Codes)
    columns = length(x) ÷ max(size(x, 1), 1)
    wide = reshape(single(x), size(x, 1), columns)::Matrix{Float32}  # (n, columns)

    # 1. scale: of each group, from its largest magnitude, or from its smallest value to its largest
    scale, zero = group_scales(wide, as)  # (groups, columns), (groups, columns)

    # 2. round: half to even, into the range of the codes
    rounded = has_scale(as.format) ? rounded_steps(wide, scale, zero, as) : rounded_floats(wide, as.format)

    # 3. pack: into as few bytes as the format takes
    codes = packed_codes(rounded, as)  # (W, columns)

    dims = Base.tail(size(x))
    shaped(y, rows) = reshape(y[1:rows, :], rows, dims...)
    zero = shaped(zero, zero_count(as))
    return with_arrays(as, shaped(codes, code_width(as)), shaped(scale, scale_count(as)), zero)
end

# 4. restore: two operations, each rounded
function restored(codes::Codes)
    dims = Base.tail(size(codes.codes))
    columns = prod(dims)
    packed = reshape(codes.codes, code_width(codes), columns)
    has_scale(codes.format) || return reshape(float_values(packed, codes.format), codes.channels, dims...)
    steps = unpacked_codes(packed, codes)  # (n, columns)
    values = zeros(Float32, codes.channels, columns)
    scale = reshape(codes.scale, group_count(codes), columns)
    for column in 1:columns, g in 1:group_count(codes), d in group_channels(codes, g)
        values[d, column] = Float32(steps[d, column]) * scale[g, column]
        codes.zero_point && (values[d, column] += codes.zero[g+(column-1)*group_count(codes)])
    end
    return reshape(values, codes.channels, dims...)
end

single(x::AbstractArray{T}) where {T} = convert(Array{Float32}, T <: Half ? widened(x) : map(Float32, x))

function group_scales(x::Matrix{Float32}, as::Codes)
    groups = scale_count(as)
    scale, zero = zeros(Float32, groups, size(x, 2)), zeros(Float32, groups, size(x, 2))
    for column in 1:size(x, 2), g in 1:groups
        values = view(x, group_channels(as, g), column)
        low, high = as.zero_point ? extrema(values) : (0.0f0, maximum(abs, values))
        scale[g, column] = (high - low) / Float32(last(code_range(as)))
        zero[g, column] = low
    end
    all(isfinite, scale) || reject(:invalid_config, "quantise", "x", "finite values", "others")
    return scale, zero
end

function rounded_steps(x::Matrix{Float32}, scale::Matrix{Float32}, zero::Matrix{Float32}, as::Codes)
    steps = zeros(Int16, size(x))  # (n, columns)
    lowest, highest = Float32.(code_range(as))
    for column in 1:size(x, 2), g in 1:group_count(as), d in group_channels(as, g)
        scale[g, column] == 0 && continue
        ratio = (x[d, column] - zero[g, column]) / scale[g, column]
        steps[d, column] = clamp(round(ratio), lowest, highest)
    end
    return steps
end

function rounded_floats(x::Matrix{Float32}, format)
    format == "f16" && return narrow(x, Float16)
    format == "bf16" && return narrow(x, BFloat16)
    return map(fp8_code, x)
end

# Like a half with four bits of exponent and three of fraction, but without infinities: 448 is the largest
# value.
function fp8_code(x::Float32)
    isnan(x) && return 0x7f
    steps = isinf(x) ? 0x7e : min(steps_from_zero(Float64(x), 3, -6), 0x7e)
    return UInt8(steps) | (signbit(x) ? 0x80 : 0x00)
end

function fp8_value(code::UInt8)
    exponent, fraction = (code >> 3) & 0x0f, code & 0x07
    code & 0x7f == 0x7f && return NaN32
    size = exponent == 0 ? ldexp(Float32(fraction), -9) : ldexp(Float32(8 + fraction), Int(exponent) - 10)
    return code & 0x80 == 0 ? size : -size
end

const FP8_VALUES = map(fp8_value, 0x00:0xff)

float_values(codes::Matrix{UInt8}, format) = Float32[FP8_VALUES[code+1] for code in codes]
float_values(codes::Matrix, format) = widened(codes)

function packed_codes(rounded::Matrix, as::Codes)
    as.format == "int4" || return map(code_type(as), rounded)
    packed = zeros(UInt8, code_width(as), size(rounded, 2))  # (W, columns)
    for column in 1:size(rounded, 2), d in 1:as.channels
        packed[fld1(d, 2), column] |= (rounded[d, column] & 0x0f) << (isodd(d) ? 0 : 4)
    end
    return packed
end

function unpacked_codes(packed::Matrix, as::Codes)
    as.format == "int4" || return packed
    steps = zeros(Int8, as.channels, size(packed, 2))  # (n, columns)
    for column in 1:size(packed, 2), d in 1:as.channels
        four_bits = Int8((packed[fld1(d, 2), column] >> (isodd(d) ? 0 : 4)) & 0x0f)
        steps[d, column] = as.zero_point || four_bits < 8 ? four_bits : four_bits - 16
    end
    return steps
end
