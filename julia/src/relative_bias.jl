# Learned biases by relative distance, in buckets that widen with it.
#
#     output = scores + table[h, bucket(t - p)],   p the position of the query, t that of the key
#
# Letters: B batch, H heads, Tq and Tk query and key lengths; n buckets, for each direction.
#
# Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
# 2020, section 2.1; its code, for the borders of the buckets.

"""
    relative_bias(scores, table; q_offset = 0, bidirectional = true, max_distance = 128)

`scores` `(Tk, Tq, H, B)` plus the biases of `table` `(H, buckets)`.

- `q_offset`: position of the first query, counted from 0
- `bidirectional`: the upper half of the buckets is for keys after the query; else those share the bucket of
  distance 0
- `max_distance`: from here on everything is in the last bucket

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function relative_bias(scores, table; q_offset = 0, bidirectional = true, max_distance = 128)
    @nospecialize q_offset bidirectional max_distance
    options = (q_offset = q_offset, bidirectional = bidirectional, max_distance = max_distance)
    return relative_bias_steps(scores, table; options...).output
end

"""
    relative_bias_steps(scores, table; q_offset, bidirectional, max_distance) -> (output, buckets)

[`relative_bias`](@ref) with the bucket of each pair, counted from 0: `Int64`, `(Tk, Tq)`; same errors.
"""
function relative_bias_steps(scores, table; q_offset = 0, bidirectional = true, max_distance = 128)
    @nospecialize q_offset bidirectional max_distance
    check_scores("relative_bias", scores, q_offset)
    check_buckets("relative_bias", scores, table, bidirectional, max_distance)
    offset, far = position_of(q_offset), Int(max_distance)
    return narrowed(with_buckets(widened(scores), widened(table), offset, bidirectional, far), eltype(scores))
end

function with_buckets(scores, table, q_offset::Int, bidirectional::Bool, max_distance::Int)
    Tk, Tq, H, _ = size(scores)

    # 1. distances: of the key from the query, negative when it comes before
    distances = [(j - 1) - (i - 1 + q_offset) for j in 1:Tk, i in 1:Tq]  # (Tk, Tq)

    # 2. buckets: exact ones for the near, logarithmic ones for the far
    n = bidirectional ? size(table, 2) ÷ 2 : size(table, 2)
    buckets = Matrix{Int64}(undef, Tk, Tq)  # (Tk, Tq)
    for (slot, r) in enumerate(distances)
        upper = bidirectional && r > 0 ? n : 0
        buckets[slot] = upper + bucket(bidirectional ? abs(r) : max(-r, 0), n, max_distance)
    end

    # 3. add: each head reads a row of its own
    bias = [table[h, buckets[j, i]+1] for j in 1:Tk, i in 1:Tq, h in 1:H]  # (Tk, Tq, H)
    output = scores .+ bias  # (Tk, Tq, H, B)
    return (output = output, buckets = buckets)
end

# Of a distance d >= 0, from 0 to n - 1. The last term of the quotient lets one that is whole come out whole.
function bucket(d::Int, n::Int, max_distance::Int)
    exact = n ÷ 2
    d < exact && return d
    share = log(d / exact) / log(max_distance / exact)
    return min(n - 1, exact + floor(Int, share * (n - exact) + 1e-9))
end
