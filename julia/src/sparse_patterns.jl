# Sparse attention patterns: which keys each query sees, fixed before any number is known.
#
# A pattern says it twice. `sees(pattern, i, kv_len)` is a predicate over keys, for the mask;
# `key_list(pattern, i, kv_len)` gives the keys of a query in ascending order without a look at all the
# others, for the work. Queries i and keys j are positions here, counted from 0.
#
# Sources: Beltagy et al., "Longformer", 2020 (window, dilated, global); Child et al., "Generating Long
# Sequences with Sparse Transformers", 2019 (strided, fixed); Zaheer et al., "Big Bird", 2020.

"""
Which keys each query sees: [`Window`](@ref), [`Dilated`](@ref), [`Strided`](@ref), [`Fixed`](@ref),
[`Global`](@ref), [`BigBird`](@ref) or [`Blocks`](@ref). All sizes are integers. Any value fits in their
fields, so that a wrong one is named by the call it is given to.
"""
abstract type Pattern end

"""
    Window(left, right)

`left` keys before the query, itself, and `right` after it.
"""
struct Window <: Pattern
    left
    right
end

"""
    Dilated(left, right, dilation)

As [`Window`](@ref), but every `dilation`-th key only, and as many of them.
"""
struct Dilated <: Pattern
    left
    right
    dilation
end

"""
    Strided(stride)

The last `stride` keys up to the query, and every one that is a multiple of `stride` before it.
"""
struct Strided <: Pattern
    stride
end

"""
    Fixed(stride, summary)

Of the keys up to the query: those in its own block of `stride`, and the last `summary` of every block.
"""
struct Fixed <: Pattern
    stride
    summary
end

"""
    Global(left, right, tokens)

As [`Window`](@ref), and the positions in `tokens` see all and are seen by all.
"""
struct Global <: Pattern
    left
    right
    tokens
end

"""
    BigBird(block, window, global_blocks, random, seed)

In blocks of `block` positions: `window` neighbours on either side, the first `global_blocks`, which see all
and are seen by all, and `random` others, drawn by the random words of `seed` for each block of queries.
"""
struct BigBird <: Pattern
    block
    window
    global_blocks
    random
    seed
end

"""
    Blocks(block, mask)

In blocks of `block` positions, as `mask` says: `Bool`, `(cld(Tk, block), cld(Tq, block))`, true = attend.
"""
struct Blocks <: Pattern
    block
    mask
end

# 1. window: near enough on either side
sees(p::Window, i::Int, kv_len::Int) = j -> -p.left <= j - i <= p.right
key_list(p::Window, i::Int, kv_len::Int) = max(i - p.left, 0):min(i + p.right, kv_len - 1)

# 2. dilated: the same in steps
sees(p::Dilated, i::Int, kv_len::Int) =
    j -> (j - i) % p.dilation == 0 && -p.left <= (j - i) ÷ p.dilation <= p.right
function key_list(p::Dilated, i::Int, kv_len::Int)
    before = min(p.left, i ÷ p.dilation)
    after = min(p.right, fld(kv_len - 1 - i, p.dilation))
    return [i + step * p.dilation for step in -before:after]
end

# 3. strided: the near past, and a comb through the far one
sees(p::Strided, i::Int, kv_len::Int) = j -> j <= i && (i - j < p.stride || (i - j) % p.stride == 0)
function key_list(p::Strided, i::Int, kv_len::Int)
    near = max(i - p.stride + 1, 0)
    return [j for part in (i%p.stride:p.stride:near-1, near:i) for j in part if j < kv_len]
end

# 4. fixed: the own block, and the summaries of all before
sees(p::Fixed, i::Int, kv_len::Int) =
    j -> j <= i && (j ÷ p.stride == i ÷ p.stride || j % p.stride >= p.stride - p.summary)
function key_list(p::Fixed, i::Int, kv_len::Int)
    own = i - i % p.stride
    summaries = (j for start in 0:p.stride:own-1 for j in start+p.stride-p.summary:start+p.stride-1)
    return [j for part in (summaries, own:i) for j in part if j < kv_len]
end

# 5. global: a window, and tokens that see all and are seen by all
function sees(p::Global, i::Int, kv_len::Int)
    near = sees(Window(p.left, p.right), i, kv_len)
    return j -> near(j) || i in p.tokens || j in p.tokens
end
function key_list(p::Global, i::Int, kv_len::Int)
    i in p.tokens && return 0:kv_len-1
    near = key_list(Window(p.left, p.right), i, kv_len)
    return sort!(union(near, Int[j for j in p.tokens if j < kv_len]))
end

# 6. bigbird: blocks near by, the first blocks, and some at random
function sees(p::BigBird, i::Int, kv_len::Int)
    a = i ÷ p.block
    drawn = random_blocks(p, a, kv_len)
    return j -> is_fixed(p, a, j ÷ p.block) || j ÷ p.block in drawn
end
function key_list(p::BigBird, i::Int, kv_len::Int)
    a = i ÷ p.block
    blocks = sort!([fixed_blocks(p, a, kv_len); random_blocks(p, a, kv_len)])
    return positions_in(blocks, p.block, kv_len)
end

# 7. blocks: any table
sees(p::Blocks, i::Int, kv_len::Int) = j -> p.mask[j÷p.block+1, i÷p.block+1]
key_list(p::Blocks, i::Int, kv_len::Int) =
    positions_in(findall(p.mask[:, i÷p.block+1]) .- 1, p.block, kv_len)

positions_in(blocks, block, kv_len::Int) =
    Int[j for c in blocks for j in c*block:min((c + 1) * block, kv_len)-1]

# Block c of the keys, as block a of the queries sees it without any luck.
is_fixed(p::BigBird, a, c) = abs(a - c) <= p.window || a < p.global_blocks || c < p.global_blocks

function fixed_blocks(p::BigBird, a, kv_len::Int)
    last = cld(kv_len, p.block) - 1
    a < p.global_blocks && return collect(0:last)
    first_blocks = 0:min(p.global_blocks - 1, last)
    return Int[first_blocks; max(a - p.window, length(first_blocks)):min(a + p.window, last)]
end

# Each draw takes one of the blocks that are left.
function random_blocks(p::BigBird, a, kv_len::Int)
    left = Int[c for c in 0:cld(kv_len, p.block)-1 if !is_fixed(p, a, c)]
    words = random_words(Int(p.seed), a * p.random, min(p.random, length(left)))
    return Int[popat!(left, Int(widemul(word, length(left)) >> 32) + 1) for word in words]
end

"""
    sparse_mask(pattern, q_len, kv_len; causal = false)

The pattern as a table `Array{Bool}` `(Tk, Tq)`, true = attend. `causal`: and no key after the query.

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function sparse_mask(pattern, q_len::Integer, kv_len::Integer; causal = false)
    @nospecialize pattern causal
    check_pattern("sparse_mask", pattern, Int(q_len), Int(kv_len))
    check_flag("sparse_mask", "causal", causal)
    table = Matrix{Bool}(undef, kv_len, q_len)  # (Tk, Tq)
    for i in 0:q_len-1
        fill_row!(view(table, :, i + 1), sees(pattern, i, Int(kv_len)), causal ? i : Int(kv_len))
    end
    return table
end

function fill_row!(row, sees_key, last_key::Int)
    for j in 0:length(row)-1
        row[j+1] = j <= last_key && sees_key(j)
    end
end
