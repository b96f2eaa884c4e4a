# What the tests share. A name in brackets in that of a test, (FullyMaskedRow), is a flag of docs/traps.md.

const FLOATS = (Float32, Float64)

# An array from its values in row-major order, with the dimensions as a row-major language writes them.
row_major(T, dims, values) = reshape(T[values...], reverse(dims)...)

# One head, D = 1: the scores are the keys themselves, so [0, log(2)] gives the weights 1/3 and 2/3.
column(T, values) = row_major(T, (1, 1, length(values), 1), values)
score_form(T, scores, v; queries = 1) = ones(T, 1, queries, 1, 1), column(T, scores), column(T, v)

# q = 0: every visible key has the same weight, and the output is the mean of their values.
function uniform_form(T, v; queries = length(v))
    return zeros(T, 1, queries, 1, 1), ones(T, 1, length(v), 1, 1), column(T, v)
end

# The code of the error that a call throws; :none when it throws nothing.
function code_of(call)
    try
        call()
    catch error
        error isa AttentionError || rethrow()
        return error.code
    end
    return :none
end

# Equal bit for bit, where NaN is NaN and -0 is not 0.
same(a, b) = size(a) == size(b) && eltype(a) == eltype(b) && isequal(a, b)

# Two ways to the same numbers. Each number is a chain of at most 64 roundings, half an eps each: a score of
# D <= 9 channels (18, and the scale), softcap and exponential (5), a total over Tk <= 9 keys (9), a weighted
# sum of their values (18), and a division. So the two are at most 64 eps of the largest number on the way
# apart, which among numbers around 1 is at most twice what comes out, or 1: 128 eps. Layers, whose scores sum
# larger numbers, are held to the same, which is more than their own bound would ask.
tolerance(::Type{T}) where {T} = 128 * eps(T)
function near(a, b)
    limit = tolerance(eltype(a))
    return size(a) == size(b) && isapprox(a, b; rtol = limit, atol = limit, nans = true)
end

# Inputs of one random call. All sizes may be 1, Tk and Tq may be 0.
function random_heads(rng, T)
    B, Hkv, G, D, Dv = rand(rng, 1:3), rand(rng, 1:3), rand(rng, 1:3), rand(rng, 1:9), rand(rng, 1:9)
    Tq, Tk = rand(rng, 0:9), rand(rng, 0:9)
    q = randn(rng, T, D, Tq, Hkv * G, B)
    return q, randn(rng, T, D, Tk, Hkv, B), randn(rng, T, Dv, Tk, Hkv, B)
end

function random_mask(rng, Tk, Tq, Hq, B)
    side() = rand(rng, Any[nothing, 0, 1, 3])
    return Mask(
        keep = rand(rng, Bool) ? nothing : rand(rng, Tk, Tq, Hq, B) .< 0.8,
        causal = rand(rng, Bool),
        window = rand(rng, Bool) ? nothing : (side(), side()),
        kv_lengths = rand(rng, Bool) ? nothing : Int64[rand(rng, 0:Tk) for _ in 1:B],
        q_offset = rand(rng, Any[nothing, rand(rng, -3:6), Int64[rand(rng, -3:6) for _ in 1:B]]),
    )
end

# A good call of sdpa, to be spoilt by the tests of the codes.
const Q, K, V = zeros(4, 3, 4, 2), zeros(4, 5, 2, 2), zeros(6, 5, 2, 2)
