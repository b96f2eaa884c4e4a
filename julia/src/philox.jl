# Philox4x32-10: random words that depend on a seed and an index alone.
#
#     word n = word n mod 4 of the block with counter n div 4 and key seed
#
# There is no state to carry along: every element of an array finds its own word, in any order and in every
# language.
#
# Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011, section 3.3.

const PHILOX_FACTORS = (0xd2511f53, 0xcd9e8d57)
const PHILOX_KEY_STEPS = (0x9e3779b9, 0xbb67ae85)

"""
    philox_words(seed, first, count)

The words `first`, `first + 1`, … of the stream of `seed`, counted from 0: `Vector{UInt32}`, `(count,)`.

Throws `AttentionError`: invalid_config.
"""
function philox_words(seed, first, count)
    check_whole("philox_words", "seed", seed, 0, LARGEST_SEED)
    check_whole("philox_words", "first", first, 0)
    check_whole("philox_words", "count", count, 0)
    return random_words(Int(seed), Int(first), Int(count))
end

# 1. counter: 64 bits in the two low words of 128
split_words(n::Int) = (n % UInt32, (n >> 32) % UInt32)
philox_counter(block::Int) = (split_words(block)..., 0x00000000, 0x00000000)

# 2. rounds: ten, each two products of 64 bits whose halves are crossed and mixed with the key
function philox_block(counter::NTuple{4,UInt32}, key::NTuple{2,UInt32})
    for _ in 1:10
        a = widemul(PHILOX_FACTORS[1], counter[1])
        b = widemul(PHILOX_FACTORS[2], counter[3])
        high_a, high_b = (a >> 32) % UInt32, (b >> 32) % UInt32
        counter = (high_b ⊻ counter[2] ⊻ key[1], b % UInt32, high_a ⊻ counter[4] ⊻ key[2], a % UInt32)
        key = key .+ PHILOX_KEY_STEPS
    end
    return counter
end

# 3. words: from the middle of the first block to the middle of the last
function random_words(seed::Int, first::Int, count::Int)
    words = UInt32[]  # (count,)
    skipped = first & 3
    for block in first>>2:(first+count+3)>>2-1
        append!(words, philox_block(philox_counter(block), split_words(seed)))
    end
    return words[skipped+1:skipped+count]
end
