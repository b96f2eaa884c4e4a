# Ways to stretch the frequencies of rotary positions to sequences longer than those of the training.
#
# Each gives the frequencies of a row, f of R/2, and the factor on its cosines and sines, from the frequencies
# as they were. L is the length of the row, L0 that of the training, s the factor of the stretch. All of it is
# in Float64.
#
# Sources: Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023
# (linear); bloc97, "Dynamically Scaled RoPE", 2023 (dynamic); Peng et al., "YaRN", 2024; Dubey et al., "The
# Llama 3 Herd of Models", 2024, and the code of Llama 3.1; Ding et al., "LongRoPE", 2024, and that of Phi-3.

"""
A way to stretch rotary frequencies: [`LinearScaling`](@ref), [`DynamicScaling`](@ref), [`YarnScaling`](@ref),
[`Llama3Scaling`](@ref) or [`LongRopeScaling`](@ref). Any value fits in their fields, so that a wrong one is
named by the call it is given to.
"""
abstract type RopeScaling end

"""
    LinearScaling(; factor)

Positions are divided by `factor`.
"""
Base.@kwdef struct LinearScaling <: RopeScaling
    factor = nothing
end

"""
    DynamicScaling(; factor, original_length, length = nothing)

The base grows with the length as soon as that is beyond `original_length`. `length`: `nothing` = that of the
row, its largest position plus 1.
"""
Base.@kwdef struct DynamicScaling <: RopeScaling
    factor = nothing
    original_length = nothing
    length = nothing
end

"""
    YarnScaling(; factor, original_length, beta_fast = 32, beta_slow = 1, attention_factor, truncate = true)

Pairs that turn more than `beta_fast` times within `original_length` stay as they are, those that turn less
than `beta_slow` times are divided by `factor`, and a ramp leads from one to the other, from whole pair to
whole pair when `truncate`. `attention_factor`: `nothing` = 0.1 log(factor) + 1, at least 1.
"""
Base.@kwdef struct YarnScaling <: RopeScaling
    factor = nothing
    original_length = nothing
    beta_fast = 32
    beta_slow = 1
    attention_factor = nothing
    truncate = true
end

"""
    Llama3Scaling(; factor, original_length, low_freq_factor = 1, high_freq_factor = 4)

Pairs with a wavelength below `original_length / high_freq_factor` stay as they are, those with one above
`original_length / low_freq_factor` are divided by `factor`, and between them the frequency goes from one to
the other.
"""
Base.@kwdef struct Llama3Scaling <: RopeScaling
    factor = nothing
    original_length = nothing
    low_freq_factor = 1
    high_freq_factor = 4
end

"""
    LongRopeScaling(; short_factor, long_factor, original_length, factor, attention_factor, length)

Each pair has a divisor of its own: that of `long_factor` when the length is beyond `original_length`, else
that of `short_factor`; R/2 numbers each. `factor` is only there for `attention_factor`: `nothing` = sqrt(1 +
log(factor) / log(original_length)), at least 1. `length`: `nothing` = that of the row, its largest position
plus 1.
"""
Base.@kwdef struct LongRopeScaling <: RopeScaling
    short_factor = nothing
    long_factor = nothing
    original_length = nothing
    factor = nothing
    attention_factor = nothing
    length = nothing
end

# f, R numbers of which are rotated, `base`, and the row's length L: the new f, and the attention factor.
scaled(::Nothing, f, R, base, L) = f, 1.0

# 1. linear: all frequencies alike
scaled(scaling::LinearScaling, f, R, base, L) = f ./ scaling.factor, 1.0

# 2. dynamic: a larger base, which slows the slow pairs and hardly the fast ones
function scaled(scaling::DynamicScaling, f, R, base, L)
    L0, s = scaling.original_length, Float64(scaling.factor)
    L = something(scaling.length, L)
    (L > L0 && R > 2) || return f, 1.0
    stretched = base * (s * L / L0 - (s - 1))^(R / (R - 2))
    return rope_frequencies(stretched, R), 1.0
end

# 3. yarn: the slow pairs, with a ramp
function scaled(scaling::YarnScaling, f, R, base, L)
    L0, s = scaling.original_length, scaling.factor
    pair_of(turns) = R * log(L0 / (2π * turns)) / (2 * log(base))
    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate
        low, high = floor(low), ceil(high)
    end
    low, high = clamp(low, 0.0, R - 1.0), clamp(high, 0.0, R - 1.0)
    high = high == low ? low + 0.001 : high
    ramp = [clamp((i - low) / (high - low), 0.0, 1.0) for i in 0:length(f)-1]  # (R/2,)
    attention = something(scaling.attention_factor, s > 1 ? 0.1 * log(s) + 1 : 1.0)
    return f .* (1 .- ramp) .+ f ./ s .* ramp, attention
end

# 4. llama3: the slow pairs, by their wavelength
function scaled(scaling::Llama3Scaling, f, R, base, L)
    L0, s = scaling.original_length, scaling.factor
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    function stretched(f_i)
        2π / f_i < L0 / high && return f_i
        2π / f_i > L0 / low && return f_i / s
        t = (L0 * f_i / 2π - low) / (high - low)
        return (1 - t) * f_i / s + t * f_i
    end
    return map(stretched, f), 1.0
end

# 5. longrope: each pair by a divisor of its own
function scaled(scaling::LongRopeScaling, f, R, base, L)
    L0, s = scaling.original_length, something(scaling.factor, 1)
    divisors = something(scaling.length, L) > L0 ? scaling.long_factor : scaling.short_factor
    attention = something(scaling.attention_factor, s > 1 ? sqrt(1 + log(s) / log(L0)) : 1.0)
    return f ./ divisors, attention
end
