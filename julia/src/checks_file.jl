# The checks of a file that a cache was saved in. `damaged` is a file that no cache has written, `other`
# one of a cache that does not fit.

damaged(name::String, argument::String, expected, got) =
    reject(:invalid_request, name, argument, expected, got)

function check_description(name::String, cache, metadata)
    @nospecialize
    texts = metadata isa Dict && all(value -> value isa String, values(metadata))
    texts || damaged(name, "metadata", "texts", typeof(metadata))
    for (field, due) in (("format", FILE_FORMAT), ("version", FILE_VERSION))
        got = get(metadata, field, "none")
        got == due || damaged(name, field, due, got)
    end
    kind = get(metadata, "kind", nothing)
    kind === nothing && damaged(name, "kind", "a value", "none")
    kind == kind_name(cache) || reject(:invalid_config, name, "kind", kind_name(cache), kind)
    own = description(cache)
    for (field, due) in own
        haskey(metadata, field) || field in NOT_ALWAYS || damaged(name, field, "a value", "none")
        got = get(metadata, field, "none")
        fits = got == due || field in NOT_COMPARED || field == "dtype"
        fits || reject(:invalid_config, name, field, due, got)
    end
    for field in setdiff(NOT_ALWAYS, first.(own))
        got = get(metadata, field, "none")
        got == "none" || reject(:invalid_config, name, field, "none", got)
    end
    metadata["dtype"] in values(FILE_TYPES) || damaged(name, "dtype", "a float type", metadata["dtype"])
    dtype = FILE_TYPES[eltype(cache)]
    same = metadata["dtype"] == dtype
    same || reject(:dtype_mismatch, name, "dtype", dtype, metadata["dtype"])
    return nothing
end

# A tensor of a file, by its element type and size.
function check_file_tensor(name::String, tensors, argument::String, T, dims)
    @nospecialize
    x = get(tensors, argument, nothing)
    good = x isa Array && eltype(x) === T && size(x) == dims
    good || damaged(name, argument, "$T of size $dims", x isa Array ? (eltype(x), size(x)) : "none")
    return x
end

# Of a PerHeadCache each head of a row is a row of its own.
function check_file_rows(name::String, @nospecialize(cache), tensors)::Rows
    dims = cache isa PerHeadCache ? (cache.num_kv_heads, cache.batch) : (cache.batch,)
    B = prod(dims)
    counts = vec(check_file_tensor(name, tensors, "lengths", Int64, dims))
    next = vec(check_file_tensor(name, tensors, "next", Int64, dims))
    positions = get(tensors, "positions", nothing)
    L = positions isa Array{Int64} && ndims(positions) > 0 ? size(positions, 1) : -1
    positions = check_file_tensor(name, tensors, "positions", Int64, (max(L, 0), dims...))
    positions = reshape(positions, size(positions, 1), B)
    good = all(n -> 0 <= n <= L, counts) && reduce(max, counts; init = 0) == L
    good || damaged(name, "lengths", "values from 0 to $L, and one of that", repr(counts))
    lists = [positions[1:counts[b], b] for b in 1:B]
    for b in 1:B
        good = all(==(-1), positions[counts[b]+1:end, b]) && rises(lists[b], next[b])
        good = good && is_whole(cache, lists[b], next[b])
        due = "those of a row, which rise below $(next[b])"
        good || damaged(name, "positions", due, repr(positions[:, b]))
    end
    return Rows(lists, next, check_file_tracked(name, cache, tensors, counts, L))
end

# The weights of the slots of each row and head: none where nothing is tracked.
function check_file_tracked(name::String, @nospecialize(cache), tensors, counts::Vector{Int64}, L::Int)
    tracks(cache) || return [Vector{Float64}[] for _ in counts]
    Hkv, rows = cache.num_kv_heads, length(counts)
    weights = check_file_tensor(name, tensors, "tracked", Float64, (L, Hkv, cache.batch))
    heads = cache isa PerHeadCache ? 1 : Hkv
    weights = reshape(weights, L, heads, rows)  # (L, Hkv, B), or (L, 1, Hkv·B)
    return [[weights[1:counts[b], h, b] for h in 1:heads] for b in 1:rows]
end

# A negative `next` is met first: its difference could wrap around.
rises(list::Vector{Int64}, next::Int64) =
    0 <= next <= FARTHEST && all(>(0), diff([-1; list; next]))

# Whether a row can be one of such a cache: only those that can be edited have gaps, and a window its own.
is_whole(::Union{EditableCache,PerHeadCache}, list, next) = true
is_whole(::Cache, list, next) = length(list) == next
is_whole(cache::RotatingCache, list, next) =
    length(list) - count(j -> cache.keep <= j <= next - cache.window, list) ==
    min(next, cache.keep) + length(max(cache.keep, next - cache.window + 1):next-1)

# The arrays of a file as they are held: (n, L, H, B).
function check_file_contents(name::String, @nospecialize(cache), tensors, counts::Vector{Int64})
    L, found = reduce(max, counts; init = 0), NamedTuple()
    for (field, x) in stored_arrays(cache)
        field == "tracked" && continue  # it went with the rows
        dims, len = size(x), slots_of(cache, field, counts, L)
        x = check_file_tensor(name, tensors, field, eltype(x), (dims[1], len, dims[3:end]...))
        four = reshape(x, dims[1], len, length(dims) == 4 ? dims[3] : 1, cache.batch)
        found = merge(found, NamedTuple{(Symbol(field),)}((four,)))
    end
    for field in keys(tensors)
        known = field in ("lengths", "next", "positions") || haskey(found, Symbol(field))
        known |= field == "tracked" && tracks(cache)
        known || damaged(name, field, "no such tensor", "one")
    end
    return found
end

# How long an array of a file is along its slots: groups of keys share scales, and only tails are in k_tail.
slots_of(cache, field, counts, L::Int) = L
slots_of(cache::KiviCache, field, counts, L::Int) =
    field in ("k_scale", "k_zero") ? most(counts .÷ cache.key_groups) :
    field == "k_tail" ? most(counts .% cache.key_groups) : L

function check_file_room(name::String, @nospecialize(cache), counts::Vector{Int})
    cache isa PagedCache || return check_room(name, reduce(max, counts; init = 0), capacity_of(cache))
    page_size, pool = cache.pool.page_size, cache.pool
    own = [page for pages in cache.pages for page in pages]
    freed = count(page -> count(==(page), own) == pool.holders[page], unique(own))
    return check_pages(name, reduce(+, cld.(counts, page_size); init = 0), length(pool.free) + freed)
end
