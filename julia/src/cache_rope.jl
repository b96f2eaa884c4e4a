# Rotary positions in a cache: a key is turned once, when it comes, or whenever it is attended to.
#
# Rotations add up, so that a key that was turned to position j and then by n more stands at j + n. A cache
# that holds keys as they came turns all of them in every attend, and is shifted by its numbers alone.
#
# Letters: B batch, H heads, T new positions, Tq queries, L slots of the longest row, D head size.
#
# Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, section 3.2
# (positions within the cache).

# By what a cache turns keys and queries.
cache_rope(cache::Cache) = cache.rope

# By what the keys that are held are turned, which is what a file says of them.
held_rope(cache::Cache) = cache.rope_at == "attend" ? nothing : cache.rope

# Queries as they are asked: with the rope of a cache, each at its position.
function turned_queries(q, options, held::Mask)
    @nospecialize options
    options === nothing && return q
    from = row_offsets(held.q_offset, size(q, 4))::Vector{Int}
    return turn_heads(q, options, Int64[p + i for i in 0:size(q, 2)-1, p in from])
end

# Keys as they are held: turned, each at its position, or as they came. In the type that is computed in.
function turned_keys(cache::Cache, k, counts::Vector{Int}, padding)
    held_rope(cache) === nothing && return widened(k)
    at = new_positions(cache.rows, size(k, 2), counts, padding)  # (T, B)
    return turn_heads(widened(k), cache.rope, at)
end

# Held keys (D, L, Hkv, B) as they are attended to: each turned at the position of its slot.
function attended_keys(cache::Cache, k, held::Mask)
    (cache.rope === nothing || held_rope(cache) !== nothing) && return k
    return turn_heads(k, cache.rope, held.kv_positions)
end

# Turned keys, by so many positions more. The attention factor of a scaling is in them already.
function turned_by(k, options::Rope, by::Int64)
    plain = Rope(options.base, options.interleaved, options.rotary_dim, 0, without_factor(options.scaling))
    return turn_heads(k, plain, fill(by, size(k, 2), size(k, 4)))
end

without_factor(@nospecialize(scaling)) = scaling
without_factor(s::YarnScaling) =
    YarnScaling(s.factor, s.original_length, s.beta_fast, s.beta_slow, 1, s.truncate)
without_factor(s::LongRopeScaling) =
    LongRopeScaling(s.short_factor, s.long_factor, s.original_length, s.factor, 1, s.length)
