# The checks of the caches.

# Sizes of a cache: integers of at least the number beside them; `capacity` may be absent. All in all not more
# numbers than a Float64 can count.
function check_cache_config(name::String, batch, num_kv_heads, head_dim, value_dim, capacity)
    @nospecialize
    sizes = (
        ("batch", batch, 0),
        ("num_kv_heads", num_kv_heads, 1),
        ("head_dim", head_dim, 1),
        ("value_dim", value_dim, 0),
        ("capacity", capacity === nothing ? 0 : capacity, 0),
    )
    for (argument, size, least) in sizes
        good = is_integer(size) && size >= least
        good || reject(:invalid_config, name, argument, "an integer >= $least", repr(size))
    end
    rows = prod(max(Float64(n), 1.0) for n in (batch, num_kv_heads, something(capacity, 0)))
    count = rows * max(head_dim, value_dim)
    good = count <= 2.0^53
    good || reject(:invalid_config, name, "capacity", "a cache of at most 2^53 numbers", count)
    return nothing
end

function check_append(name::String, cache, k, v, lengths)
    @nospecialize
    check_eltype(name, "k", k, eltype(cache))
    check_rank(name, "k", k, "(D, T, H, B)", 4)
    check_size(name, "k", k, (cache.head_dim, size(k, 2), cache.num_kv_heads, cache.batch))
    check_eltype(name, "v", v, eltype(cache))
    check_rank(name, "v", v, "(D, T, H, B)", 4)
    check_size(name, "v", v, (cache.value_dim, size(k, 2), cache.num_kv_heads, cache.batch))
    return check_lengths(name, "lengths", lengths, cache.batch, size(k, 2))
end

# The queries of a call of attend, and its options; keys and values are the cache's own.
function check_attend(name::String, cache, q, mask, bias, scale, softcap)
    @nospecialize
    check_float(name, "q", q)
    check_rank(name, "q", q, "(D, T, H, B)", 4)
    mask isa Mask || reject(:invalid_config, name, "mask", "a Mask", typeof(mask))
    good = mask.kv_lengths === nothing
    good || reject(:invalid_config, name, "kv_lengths", "nothing: the cache has its own", "a value")
    return check_sdpa(name, q, keys(cache), values(cache), mask, bias, scale, softcap, nothing, nothing)
end

function check_room(name::String, needed::Int, capacity::Union{Nothing,Int})
    fits = capacity === nothing || needed <= capacity
    fits || reject(:capacity_exceeded, name, "k", "at most $capacity positions", needed)
    return nothing
end

# One integer a row, from 0 to what the row holds.
function check_truncate(name::String, @nospecialize(lengths), held::Vector{Int64})
    list = lengths isa Union{AbstractVector,Tuple} && all(is_integer, lengths)
    list || reject(:invalid_config, name, "lengths", "a list of integers", repr(lengths))
    same = length(lengths) == length(held)
    same || reject(:shape_mismatch, name, "lengths", "$(length(held)) values", length(lengths))
    for (n, most) in zip(lengths, held)
        0 <= n <= most || reject(:invalid_config, name, "lengths", "at most the lengths held, $held", repr(n))
    end
    return nothing
end

# cache (n, L, ..., B), update (n, T, ..., B), write_indices Int64 (B,), and the room for it.
function check_cache_write(name::String, cache, update, write_indices, circular)
    @nospecialize
    check_float(name, "cache", cache)
    rank = ndims(cache)
    rank >= 3 || reject(:shape_mismatch, name, "cache", "at least rank 3 (n, L, ..., B)", "rank $rank")
    check_eltype(name, "update", update, eltype(cache))
    check_rank(name, "update", update, "as cache", rank)
    L, T, B = size(cache, 2), size(update, 2), size(cache, rank)
    check_size(name, "update", update, (size(cache, 1), T, size(cache)[3:end]...))
    check_flag(name, "circular", circular)
    check_like(name, "write_indices", write_indices, Int64, (B,))
    starts = write_indices === nothing ? zeros(Int64, B) : write_indices
    for start in starts
        start >= 0 || reject(:invalid_config, name, "write_indices", "values >= 0", start)
    end
    last_start = circular ? 0 : reduce(max, starts; init = 0)
    fits = T <= L && last_start <= L - T
    fits || reject(:capacity_exceeded, name, "update", "an end within $L positions", "$T from $last_start on")
    return nothing
end
