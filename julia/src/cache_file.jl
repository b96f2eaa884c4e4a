# A cache in a file: what it holds, and what it must fit into.
#
# The file is safetensors. Its metadata say which kind of cache it is and of what sizes; its tensors are
# the lengths and positions of the rows, the position of each row's next token, and the contents, by the
# names of `read` or `read_codes`. Every language reads the files of every other.

const FILE_FORMAT, FILE_VERSION = "rosetta-kv-cache", "1"
const FILE_TYPES =
    Dict{DataType,String}(Float16 => "f16", BFloat16 => "bf16", Float32 => "f32", Float64 => "f64")

# What describes a cache, as far as it has it. A file of another number of pages fits too.
const SIZES = (
    :batch, :num_kv_heads, :head_dim, :value_dim, :window, :keep, :page_size, :num_pages, :zero_point,
    :key_groups, :latent_dim, :rope_dim,
)
const NOT_COMPARED = ("num_pages",)
const NOT_ALWAYS = ("group", "key_groups", "track")  # absent where a cache has the default
const Quantised = Union{QuantisedCache,KiviCache}

kind_name(::KVCache) = "contiguous"
kind_name(::RotatingCache) = "rotating"
kind_name(::PagedCache) = "paged"
kind_name(::Quantised) = "quantised"
kind_name(::PerHeadCache) = "per_head"
kind_name(::LatentCache) = "latent"
kind_name(::CrossCache) = "cross"

"""
    save(cache, path)

Write a cache into a file, which appears whole or not at all.

Throws `AttentionError`: invalid_request for a path that cannot be written.
"""
function save(cache::Cache, path)
    path isa AbstractString || reject(:invalid_request, "save", "path", "a path", repr(path))
    # 1. describe: kind, type and sizes, all as text
    metadata = description(cache)

    # 2. write: rows and contents, zero beyond a row's length
    try
        write_tensors(path, Fields([row_arrays(cache); stored_arrays(cache)]), metadata)
    catch error
        error isa Union{SystemError,Base.IOError,ArgumentError} || rethrow()
        reject(:invalid_request, "save", "path", "a path that can be written", sprint(showerror, error))
    end
    return nothing
end

function description(cache::Cache)
    fields = Fields(["format" => FILE_FORMAT, "version" => FILE_VERSION, "kind" => kind_name(cache)])
    push!(fields, pair("dtype", FILE_TYPES[eltype(cache)]))
    for owner in (cache isa PagedCache ? (cache, cache.pool) : (cache,)), name in SIZES
        hasfield(typeof(owner), name) && push!(fields, pair(String(name), string(getfield(owner, name))))
    end
    turns = hasfield(typeof(cache), :rope) || cache isa PerHeadCache
    turns && push!(fields, pair("rope", string(held_rope(cache) !== nothing)))
    tracks(cache) && push!(fields, pair("track", "true"))
    if cache isa Quantised
        push!(fields, pair("quantised_format", cache.format))
        default_group(cache) || push!(fields, pair("group", string(cache.group)))
    end
    return fields
end

# Whether all channels of a head share one scale because nothing else is said, or in as many words.
default_group(cache::Quantised) = cache.group === nothing || cache.group == cache.head_dim == cache.value_dim

# Where the slots of each row, or of each head of a row, stand.
row_arrays(cache::Cache) = row_arrays(cache.rows)
row_arrays(cache::PerHeadCache) = [name => of_heads(cache, x) for (name, x) in row_arrays(cache.rows)]
row_arrays(rows::Rows) =
    Fields(["lengths" => slot_counts(rows), "next" => rows.next, "positions" => position_table(rows)])

# The contents, by name, as they are in a file.
stored_arrays(cache::Quantised) = [name_pairs(read_codes(cache)); tracked_pairs(cache)]
stored_arrays(cache::SlotCache) =
    [name_pairs(read_slots(cache, all_slots(cache.rows))); tracked_pairs(cache)]
stored_arrays(cache::Union{PagedCache,LatentCache}) = name_pairs(read(cache))
stored_arrays(cache::PerHeadCache) = [name_pairs(read(cache)); tracked_pairs(cache)]

tracked_pairs(cache::Cache) = tracks(cache) ? Fields(["tracked" => tracked(cache)]) : Fields()

name_pairs(arrays) =
    Fields([pair(String(name), arrays[name]) for name in keys(arrays) if !(name in (:lengths, :positions))])

"""
    load!(cache, path)

Replace what a cache holds by what a file holds, which must be of its kind, sizes and type.

Throws `AttentionError`: invalid_request for a file that cannot be read, is damaged or foreign;
invalid_config for one of another kind or size; dtype_mismatch; capacity_exceeded.
"""
function load!(cache::Cache, path)
    path isa AbstractString || reject(:invalid_request, "load", "path", "a path", repr(path))
    tensors, metadata = try
        read_file(path)
    catch error
        error isa Union{FileError,JSONError,SystemError,Base.IOError,EOFError,ArgumentError} || rethrow()
        reject(:invalid_request, "load", "path", "a readable file", sprint(showerror, error))
    end

    # 3. check: everything, before anything is changed
    check_description("load", cache, metadata)
    rows = check_file_rows("load", cache, tensors)
    contents = check_file_contents("load", cache, tensors, slot_counts(rows))
    check_file_room("load", cache, slot_counts(rows))

    # 4. restore: as if it had been appended
    fill_with!(cache, rows, contents)
    return cache
end

# `new`: arrays (n, L, H, B) by the names of `contents`; those that a format lacks have no rows.
function fill_with!(cache::SlotCache, rows::Rows, new::NamedTuple)
    room = max(longest(rows), something(capacity_of(cache), 0))
    none(x) = similar(x, size(x, 1), 0, size(x, 3), cache.batch)
    empty = map(none, contents(cache))
    contents!(cache, map(x -> grown(x, room), NamedTuple{keys(empty)}(merge(empty, new))))
    cache.rows = rows
    cache isa KiviCache && fill_keys!(cache, rows, new)
    cache isa CrossCache && (cache.written = any(>(0), slot_counts(rows)))
    return nothing
end

fill_with!(cache::PerHeadCache, rows::Rows, new::NamedTuple) =
    fill_with!(cache.rows, rows, map(x -> in_rows(cache, x), new))

capacity_of(cache::SlotCache) = hasfield(typeof(cache), :capacity) ? cache.capacity : nothing

# Pages are taken anew, row by row.
function fill_with!(cache::PagedCache, rows::Rows, new::NamedTuple)
    reset!(cache)
    write!(cache, (counts = slot_counts(rows), padding = "right", new = new, tokens = nothing))
    return nothing
end
