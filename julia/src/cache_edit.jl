# Positions that a caller takes out of a cache, or moves: of a contiguous or a quantised one, whose slots
# nobody shares.
#
# What is left keeps its position, and the next token still comes after the last one that the row ever held.

const EditableCache = Union{KVCache,QuantisedCache}

"""
    evict!(cache, positions)

Every row of a [`KVCache`](@ref) or [`QuantisedCache`](@ref) forgets these positions, where it holds them.

Throws `AttentionError`: invalid_config, unsupported for another cache.
"""
function evict!(cache::EditableCache, positions)
    check_list("evict", "positions", positions)
    kept = [findall(j -> !(j in positions), list) for list in cache.rows.positions]
    room = size(first(contents(cache)), 2)
    contents!(cache, map(x -> gathered(x, kept, room), contents(cache)))
    cache.rows = picked(cache.rows, kept)
    return cache
end

"""
    shift!(cache, by, from)

Every position >= `from` that a row of a [`KVCache`](@ref) or [`QuantisedCache`](@ref) holds moves by `by`,
and with it the position of the row's next token. With a rope a key is turned on by as much. None may fall
below 0, onto one that stays, or past it.

Throws `AttentionError`: invalid_config, unsupported for another cache.
"""
function shift!(cache::EditableCache, by, from)
    check_shift("shift", cache.rows, by, from)
    by, from = Int64(by), Int64(from)
    turned = cache.rope === nothing || by == 0 ? contents(cache) : turned_on(cache, by, from)
    contents!(cache, turned)
    moved(j) = j >= from ? j + by : j
    next = [n > from ? n + by : n for n in cache.rows.next]
    cache.rows = Rows([map(moved, list) for list in cache.rows.positions], next)
    return cache
end

evict!(cache::Cache, positions) = not_editable("evict", cache)
shift!(cache::Cache, by, from) = not_editable("shift", cache)

not_editable(name::String, @nospecialize(cache)) =
    reject(:unsupported, name, "cache", "a KVCache or QuantisedCache", typeof(cache))

# The arrays of a cache, with the keys from a position on turned by so many positions more.
function turned_on(cache::KVCache{T}, by::Int64, from::Int64) where {T}
    turned = narrow(turned_by(widened(cache.k), cache.rope, by), T)  # (D, room, Hkv, B)
    return (k = write_moved!(copy(cache.k), turned, cache.rows, from), v = cache.v)
end

function turned_on(cache::QuantisedCache{T}, by::Int64, from::Int64) where {T}
    wide = convert(Array{compute_type(T),4}, first(restored_heads(cache)))  # (D, L, Hkv, B)
    turned = quantised(turned_by(wide, cache.rope, by), cache.k)
    moved(old, new) = write_moved!(copy(old), new, cache.rows, from)
    codes, scale = moved(cache.k.codes, turned.codes), moved(cache.k.scale, turned.scale)
    new = (k_codes = codes, k_scale = scale, k_zero = moved(cache.k.zero, turned.zero))
    return merge(contents(cache), new)
end

function write_moved!(x, turned, rows::Rows, from::Int64)
    for (b, list) in enumerate(rows.positions)
        slots = findall(>=(from), list)
        x[:, slots, :, b] = view(turned, :, slots, :, b)
    end
    return x
end

# The attention factor of a scaling is in a stored key already.
function turned_by(k, options::Rope, by::Int64)
    plain = Rope(options.base, options.interleaved, options.rotary_dim, 0, without_factor(options.scaling))
    return turn_heads(k, plain, fill(by, size(k, 2), size(k, 4)))
end

without_factor(@nospecialize(scaling)) = scaling
without_factor(s::YarnScaling) =
    YarnScaling(s.factor, s.original_length, s.beta_fast, s.beta_slow, 1, s.truncate)
without_factor(s::LongRopeScaling) =
    LongRopeScaling(s.short_factor, s.long_factor, s.original_length, s.factor, 1, s.length)
