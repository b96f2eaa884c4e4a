# Dropout whose choice every language makes alike.
#
#     output[n] = x[n] / (1 - p) where word n of the seed is at least p · 2^32, else 0
#
# Elements are numbered in the order of the memory, the first dimension fastest, so that element n is the same
# one in a row-major language.
#
# Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014,
# section 10 (scaled while training).

"""
    Dropout(p, seed)

Drop each element with probability `p`, 0 <= p <= 1, as the random words of `seed`, 0 <= seed < 2^53, say.
"""
struct Dropout
    # Any value fits, so that a wrong one is named by the call it is given to.
    p
    seed

    Dropout(@nospecialize(p), @nospecialize(seed)) = new(p, seed)
end

"""
    dropout(x, options; offset = 0)

`x` with the elements that `options`, a [`Dropout`](@ref), drops set to 0, whatever they were, and all others
times 1/(1 - p). An `Array` of the same size.

`offset`: the number of the first element, counted from 0.

Throws `AttentionError`: dtype_mismatch, invalid_config.
"""
dropout(x, options; offset = 0) = dropout_steps(x, options; offset = offset).output

"""
    dropout_steps(x, options; offset = 0) -> (output, keep)

[`dropout`](@ref) with who was kept: `keep` is an `Array{Bool}` of the size of `x`; same errors.
"""
function dropout_steps(x, options; offset = 0)
    @nospecialize options offset
    check_dropout_op("dropout", x, options, offset)
    return narrowed(drop(widened(x), options, position_of(offset)), eltype(x))
end

function drop(x::AbstractArray{T}, options::Dropout, offset::Int) where {T}
    # 1. random words: one an element
    words = random_words(Int(options.seed), offset, length(x))

    # 2. keep: with probability 1 - p
    keep = reshape(words .>= drop_limit(options), size(x))

    # 3. scale: what is left stands for what is gone; by selection, so that a dropped NaN is gone too
    scale = keep_scale(T, options)
    output = ifelse.(keep, x .* scale, zero(T))
    return (output = collect(output), keep = collect(keep))
end

# A word below this drops its element: none is below that of p = 0, and all are below that of p = 1.
drop_limit(options::Dropout) = ceil(UInt64, Float64(options.p) * 2^32)

# In Float64, rounded once.
keep_scale(::Type{T}, options::Dropout) where {T} = T(1 / (1 - Float64(options.p)))

# What some elements in a row are multiplied with: 0 or 1/(1 - p), and 1 without a dropout.
keep_factors(::Type{T}, ::Nothing, first::Int, count::Int) where {T} = ones(T, count)
function keep_factors(::Type{T}, options::Dropout, first::Int, count::Int) where {T}
    limit, scale = drop_limit(options), keep_scale(T, options)
    return T[word >= limit ? scale : zero(T) for word in random_words(Int(options.seed), first, count)]
end
