# Three ways to generate tokens with one layer of attention, what each costs, and how long each takes.
#
#     everything       the whole text goes through the layer for each token, all but the last is thrown away
#     keys and values  of the whole text are made again, the query of the last token alone
#     cache            the last token alone goes through the layer; keys and values of the past are kept
#
# All three make the same tokens: each one is the output for the last, normalised. Per step, at a text of t
# tokens of width C, in multiply-adds:
#
#     everything       4 t C² + 2 t² C      (the masked half of the scores is computed too)
#     keys and values  2 t C² + 2 C² + 2 t C
#     cache            4 C² + 2 t C
#
# A product of an (m, k) and a (k, n) matrix is m k n multiply-adds, and moves m k + k n + m n numbers.
#
# Letters: T tokens generated, C width.
#
# Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 2.

const EVERYTHING, KEYS_VALUES, CACHE = "everything", "keys and values", "cache"
const WAYS = (EVERYTHING, KEYS_VALUES, CACHE)

"""
`text` `(C, T, 1)`, all tokens but the last one that was made. By length: `outputs` `(C, 1, 1)`, what the
layer made of that many; `seconds` from the start, when each was reached; `held`, bytes of the cache then.
"""
struct Run
    text::Array{Float32,3}
    outputs::Dict{Int,Array{Float32,3}}
    seconds::Dict{Int,Float64}
    held::Dict{Int,Int}
end

# The matrix products of the step that makes the token after the t-th: how many, and their (m, k, n).
function products(way::String, t::Int, C::Int, heads::Int)
    asked = way == EVERYTHING ? t : 1  # queries
    made = way == CACHE ? 1 : t  # keys and values
    D = C ÷ heads
    return [
        (1, asked, C, C),  # queries
        (2, made, C, C),  # keys and values
        (heads, asked, D, t),  # scores
        (heads, asked, t, D),  # weighted sum
        (1, asked, C, C),  # output
    ]
end

"""
    cost(way, tokens, width, heads) -> (multiply_adds, moved)

Of generating so many tokens; `moved` in bytes of Float32.
"""
function cost(way::String, tokens::Int, width::Int, heads::Int)
    multiply_adds = moved = 0
    for t in 1:tokens, (count, m, k, n) in products(way, t, width, heads)
        multiply_adds += count * m * k * n
        moved += sizeof(Float32) * count * (m * k + k * n + m * n)
    end
    return (multiply_adds = multiply_adds, moved = moved)
end

function random_layer(rng, width::Int, heads::Int)
    weights = [randn(rng, Float32, width, width) ./ sqrt(Float32(width)) for _ in 1:4]
    return MultiHeadAttention(weights...; num_heads = heads)
end

"""
    generate(way, layer, first_token, lengths) -> Run

Tokens after `first_token` `(C, 1, 1)`, as many as the longest length.
"""
function generate(way::String, layer, first_token::Array{Float32,3}, lengths::Vector{Int})
    C, longest = size(first_token, 1), maximum(lengths)
    tokens = zeros(Float32, C, longest + 1, 1)  # (C, T + 1, 1)
    tokens[:, 1, :] = first_token
    cache = KVCache(1, layer.num_heads, C ÷ layer.num_heads)
    outputs, seconds, held = Dict{Int,Array{Float32,3}}(), Dict{Int,Float64}(), Dict{Int,Int}()
    start = time_ns()
    for t in 1:longest
        last = step(way, layer, tokens[:, 1:t, :], cache)  # (C, 1, 1)
        tokens[:, t+1, :] = rms_norm(last)
        t in lengths || continue
        seconds[t], held[t], outputs[t] = (time_ns() - start) / 1e9, stats(cache).bytes, last
    end
    return Run(tokens[:, 1:longest, :], outputs, seconds, held)
end

function step(way::String, layer, text::Array{Float32,3}, cache)
    last = text[:, end:end, :]
    way == EVERYTHING && return layer(text; mask = Mask(causal = true))[:, end:end, :]
    way == KEYS_VALUES && return layer(last, text)
    return decode!(layer, last, cache)
end
