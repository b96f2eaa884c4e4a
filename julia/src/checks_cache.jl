# The checks of the caches.

# Sizes of a cache: integers of at least the number beside them; and how and when it rotates, if it does.
function check_head_sizes(
    name::String, batch, num_kv_heads, head_dim, value_dim, rope = nothing, rope_at = nothing
)
    @nospecialize
    check_whole(name, "batch", batch, 0)
    check_whole(name, "num_kv_heads", num_kv_heads, 1)
    check_whole(name, "head_dim", head_dim, 1)
    check_whole(name, "value_dim", value_dim, 0)
    check_numbers(name, "batch", batch, num_kv_heads, max(head_dim, value_dim))
    if rope_at !== nothing
        check_choice(name, "rope_at", rope_at, ("append", "attend"))
        rope === nothing && reject(:invalid_config, name, "rope_at", "nothing without a rope", repr(rope_at))
    end
    return rope === nothing || check_cache_rope(name, rope, Int(head_dim))
end

# Not more numbers than a Float64 can count; a size of 0 counts as 1.
function check_numbers(name::String, argument::String, sizes...)
    @nospecialize
    count = prod(max(Float64(n), 1.0) for n in sizes)
    good = count <= 2.0^53
    return good || reject(:invalid_config, name, argument, "a cache of at most 2^53 numbers", count)
end

# The most slots of a row, or none.
function check_capacity(name::String, capacity, batch, num_kv_heads, width)
    @nospecialize
    capacity === nothing && return nothing
    check_whole(name, "capacity", capacity, 0)
    return check_numbers(name, "capacity", batch, num_kv_heads, capacity, width)
end

# A key that is stored is never turned again because its row has grown.
function check_cache_rope(name::String, @nospecialize(rope), D::Int)
    check_rope_options(name, rope, D)
    good = something(rope.offset, 0) == 0
    good || reject(:invalid_config, name, "offset", "0 in a cache", repr(rope.offset))
    scaling = rope.scaling
    grows = scaling isa Union{DynamicScaling,LongRopeScaling} && scaling.length === nothing
    grows && reject(:invalid_config, name, "scaling", "a length, which in a cache must not change", "none")
    return nothing
end

# k (D, T, Hkv, B), v (Dv, T, Hkv, B), and the options. Gives how many of the T count in each row.
function check_append(name::String, cache, k, v, call)::Vector{Int}
    @nospecialize
    num_kv_heads, head_dim, value_dim = head_sizes(cache)
    check_eltype(name, "k", k, eltype(cache))
    check_rank(name, "k", k, "(D, T, H, B)", 4)
    check_size(name, "k", k, (head_dim, size(k, 2), num_kv_heads, cache.batch))
    check_eltype(name, "v", v, eltype(cache))
    check_rank(name, "v", v, "(D, T, H, B)", 4)
    check_size(name, "v", v, (value_dim, size(k, 2), num_kv_heads, cache.batch))
    return check_append_call(name, cache, call, size(k, 2))
end

# latent (R, T, B), rope_key (Dr, T, B), and the options.
function check_latent_append(name::String, cache, latent, rope_key, call)::Vector{Int}
    @nospecialize
    for (argument, x, n) in (("latent", latent, cache.latent_dim), ("rope_key", rope_key, cache.rope_dim))
        check_eltype(name, argument, x, eltype(cache))
        check_rank(name, argument, x, "(n, T, B)", 3)
        check_size(name, argument, x, (n, size(latent, 2), cache.batch))
    end
    return check_append_call(name, cache, call, size(latent, 2))
end

function check_append_call(name::String, @nospecialize(cache), call, len::Int)
    check_choice(name, "padding", call.padding, ("right", "left"))
    check_lengths(name, "lengths", call.lengths, cache.batch, len)
    if call.tokens !== nothing
        cache isa PagedCache || reject(:invalid_config, name, "tokens", "none but for a PagedCache", "tokens")
        check_like(name, "tokens", call.tokens, Int64, (len, cache.batch))
    end
    return per_row(call.lengths, len, cache.batch)
end

function check_room(name::String, needed::Int, capacity::Union{Nothing,Int})
    fits = capacity === nothing || needed <= capacity
    fits || reject(:capacity_exceeded, name, "k", "at most $capacity positions", needed)
    return nothing
end

function check_pages(name::String, needed::Int, free::Int)
    needed <= free || reject(:capacity_exceeded, name, "k", "at most the $free pages that are free", needed)
    return nothing
end

# The queries of a call of attend over L slots, and its options; keys and values are the cache's own.
function check_attend(name::String, cache, q, L::Int, mask, bias, scale, softcap)
    @nospecialize
    num_kv_heads, head_dim, _ = head_sizes(cache)
    check_eltype(name, "q", q, eltype(cache))
    check_rank(name, "q", q, "(D, T, H, B)", 4)
    check_size(name, "q", q, (head_dim, size(q, 2), size(q, 3), cache.batch))
    Hq = size(q, 3)
    good = Hq % num_kv_heads == 0
    good || reject(:shape_mismatch, name, "q", "a multiple of the $num_kv_heads key/value heads", "$Hq heads")
    check_cache_mask(name, cache, mask)
    dims = (L, size(q, 2), Hq, cache.batch)
    return check_options(name, eltype(cache), dims, mask, bias, scale, softcap, nothing)
end

function check_cache_mask(name::String, cache, mask)
    @nospecialize
    mask isa Mask || reject(:invalid_config, name, "mask", "a Mask", typeof(mask))
    for (argument, value) in (("kv_lengths", mask.kv_lengths), ("kv_positions", mask.kv_positions))
        good = value === nothing
        good || reject(:invalid_config, name, argument, "nothing: the cache has its own", "a value")
    end
    if cache isa CrossCache
        check_flag(name, "causal", mask.causal)
        mask.causal && reject(:invalid_config, name, "causal", "false for a CrossCache", "true")
        good = mask.window === nothing
        good || reject(:invalid_config, name, "window", "none for a CrossCache", repr(mask.window))
    end
    return nothing
end

# A layer, its new tokens x (C, T, B), and the cache that they go into. Gives how many count in each row.
function check_decode(name::String, layer, x, cache, call, mask, bias, scale, softcap)::Vector{Int}
    @nospecialize
    check_mha(name, layer, x, x, MhaCall())
    check_eltype(name, "x", x, eltype(cache))
    fits = cache isa Union{EditableCache,PerHeadCache,RotatingCache,PagedCache}
    fits || reject(:invalid_config, name, "cache", "a cache that grows by keys and values", typeof(cache))
    Hq, Hkv = Int(layer.num_heads), Int(layer.num_kv_heads)
    sizes = (Hkv, size(layer.w_q, 2) ÷ Hq, size(layer.w_v, 2) ÷ Hkv)
    good = sizes == head_sizes(cache)
    good || reject(:shape_mismatch, name, "cache", "(Hkv, D, Dv) of $sizes", head_sizes(cache))
    _, len, B = size(x)::NTuple{3,Int}
    B == cache.batch || reject(:shape_mismatch, name, "x", "batch $(cache.batch) as in the cache", B)
    if layer.rope !== nothing
        good = cache_rope(cache) === nothing
        good || reject(:invalid_config, name, "rope", "one in the layer or in the cache", "both")
        check_cache_rope(name, layer.rope, sizes[2])
    end
    counts = check_append_call(name, cache, call, len)
    check_cache_mask(name, cache, mask)
    dims = (longest_after(cache, counts), len, Hq, B)
    check_options(name, eltype(x), dims, mask, bias, scale, softcap, nothing)
    return counts
end

# A list of integers.
function check_list(name::String, argument::String, @nospecialize(list))
    good = list isa Union{AbstractVector,Tuple} && all(is_integer, list)
    good || reject(:invalid_config, name, argument, "a list of integers", repr(list))
    return nothing
end

# One integer a row, from 0 to what the row holds.
function check_truncate(name::String, @nospecialize(lengths), held::Vector{Int64})
    check_list(name, "lengths", lengths)
    same = length(lengths) == length(held)
    same || reject(:shape_mismatch, name, "lengths", "$(length(held)) values", length(lengths))
    for (n, most) in zip(lengths, held)
        0 <= n <= most || reject(:invalid_config, name, "lengths", "at most the lengths held, $held", repr(n))
    end
    return nothing
end

# All that the query at position lengths[b] would see must still be there.
function check_window_held(name::String, @nospecialize(cache), @nospecialize(lengths))
    for (n, held) in zip(lengths, cache.rows.positions)
        needed = max(cache.keep, n - cache.window + 1):n-1
        good = length(needed) == count(in(needed), held)
        good || reject(:invalid_config, name, "lengths", "a window before it that is still held", repr(n))
    end
    return nothing
end

# One old row for each new one, counted from 0. Gives them counted from 1.
function check_index(name::String, @nospecialize(index), batch::Int)::Vector{Int}
    check_list(name, "index", index)
    length(index) == batch || reject(:shape_mismatch, name, "index", "$batch values", length(index))
    for b in index
        0 <= b < batch || reject(:invalid_config, name, "index", "rows from 0 to $(batch - 1)", repr(b))
    end
    return Int[b + 1 for b in index]
end

# What moves must stay beyond what does not.
function check_shift(name::String, rows, by, from)
    @nospecialize by from
    for (argument, n) in (("by", by), ("from", from))
        good = is_integer(n) && -FARTHEST <= n <= FARTHEST
        good || reject(:invalid_config, name, argument, "an integer", repr(n))
    end
    for (list, next) in zip(rows.positions, rows.next)
        last_staying = maximum([-1; filter(<(from), list)])
        moving = filter(>=(from), list)
        next > from && push!(moving, next)
        good = all(j -> last_staying < j + by <= FARTHEST, moving)
        good || reject(:invalid_config, name, "by", "positions that stay beyond $last_staying", repr(by))
    end
    return nothing
end

function check_format(name::String, format, group, zero_point)
    @nospecialize
    check_choice(name, "format", format, FORMATS)
    group === nothing || check_whole(name, "group", group, 1)
    check_flag(name, "zero_point", zero_point)
    good = !zero_point || has_scale(format)
    good || reject(:invalid_config, name, "zero_point", "false for $format", "true")
    return nothing
end

function check_key_groups(name::String, format, key_groups)
    @nospecialize
    expected = "int8 or int4 for key_groups"
    has_scale(format) || reject(:invalid_config, name, "format", expected, repr(format))
    return check_whole(name, "key_groups", key_groups, 1)
end

# Numbers of Float32 that are to have codes.
function check_finite(name::String, argument::String, x::Array{Float32})
    all(isfinite, x) || reject(:invalid_config, name, argument, "finite numbers of Float32", "others")
    return nothing
end

function check_quantise(name::String, x, format, group, zero_point)
    @nospecialize
    check_float(name, "x", x)
    ndims(x) >= 1 || reject(:shape_mismatch, name, "x", "at least one dimension", "rank 0")
    return check_format(name, format, group, zero_point)
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
