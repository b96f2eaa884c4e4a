# What all kinds of caches share: how one is asked, and how its rows are forgotten, sorted and copied.
#
# A kind says what its memory is, and has four methods of its own: `planned`, which checks an append and makes
# ready what is to be stored; `write!`, which cannot fail; `attend_held`; and `read`.
#
# Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L slots of the longest
# row, D and Dv head sizes.

"""
A cache of keys and values whose float type is `T`: [`KVCache`](@ref), [`PerHeadCache`](@ref),
[`RotatingCache`](@ref), [`PagedCache`](@ref), [`QuantisedCache`](@ref), [`KiviCache`](@ref),
[`LatentCache`](@ref) or [`CrossCache`](@ref).

`append!` adds tokens, [`attend`](@ref) asks, [`append_attend!`](@ref) does both or neither,
[`truncate!`](@ref) and [`reset!`](@ref) forget, `read` copies, [`reorder!`](@ref) and [`fork`](@ref) take
rows elsewhere, [`stats`](@ref) counts. `lengths(cache)` are the lengths of all rows, `length(cache)` that
of the longest. A call that throws leaves the cache as it was. A cache of a half type holds what it was
given, and attends in `Float32`.

What several kinds take when they are made:

- `rope`: a [`Rope`](@ref) by which keys and queries are turned, each at its position; `nothing` = both come
  as they are to be used
- `rope_at`: "append", which is the default: a key is turned when it comes, and held so; or "attend": it is
  held as it came, and turned whenever it is attended to
- `track`: whether the weights that each slot is given are added up; see [`tracked`](@ref)
"""
abstract type Cache{T<:AbstractFloat} end

# The kinds whose rows lie in arrays `(n, room, H, B)`, slot by slot: `contents(cache)` names them all.
abstract type SlotCache{T} <: Cache{T} end

Base.eltype(::Type{<:Cache{T}}) where {T} = T

Base.show(io::IO, cache::Cache) =
    print(io, typeof(cache), "(", cache.batch, " rows of lengths ", lengths(cache), ")")

"""
    length(cache)

The length of the longest row.
"""
Base.length(cache::Cache) = reduce(max, lengths(cache); init = 0)

"""
    lengths(cache)

How many positions each row holds: a copy, `(B,)`; of a [`PerHeadCache`](@ref) each head of a row, `(Hkv, B)`.
"""
lengths(cache::Cache) = slot_counts(cache.rows)

# The options of one append. One concrete type for all of them: nothing is compiled again for another
# combination.
struct AppendCall
    lengths
    padding
    tokens
end

"""
    append!(cache, k, v; lengths = nothing, padding = "right", tokens = nothing)
    append!(cache::LatentCache, latent, rope_key; lengths = nothing, padding = "right")

Add `k` `(D, T, Hkv, B)` and `v` `(Dv, T, Hkv, B)`, T >= 0, or `latent` `(R, T, B)` and `rope_key` `(Dr, T,
B)`, after the last position of each row.

- `lengths`: `Int64`, `(B,)`, how many of the T count in each row; `nothing` = all
- `padding`: where those are that do not count: "right", or "left"
- `tokens`: `Int64`, `(T, B)`, only for a [`PagedCache`](@ref): what is equal from the start is stored once

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config, capacity_exceeded.
"""
function Base.append!(cache::Cache, k, v; lengths = nothing, padding = "right", tokens = nothing)
    @nospecialize lengths padding tokens
    write!(cache, planned(cache, k, v, AppendCall(lengths, padding, tokens)))
    return cache
end

"""
    attend(cache, q; mask = Mask(), bias = nothing, scale = nothing, softcap = nothing)

Attention of `q` `(D, Tq, Hq, B)` over the slots held: an `Array` `(Dv, Tq, Hq, B)`.

`mask`, `bias`: `mask.keep` and `bias` over the L slots held, in their order; causal, window and q_offset
over positions. `mask.q_offset === nothing` puts the last query on the last position of its row;
`mask.kv_lengths` and `mask.kv_positions` are the cache's own and must be `nothing`. `scale`, `softcap`: as
for [`sdpa`](@ref).

Throws `AttentionError`: shape_mismatch, dtype_mismatch, invalid_config.
"""
function attend(cache::Cache, q; mask = Mask(), bias = nothing, scale = nothing, softcap = nothing)
    @nospecialize mask bias scale softcap
    return attended(cache, q, mask, bias, scale, softcap).output
end

"""
    attend_steps(cache, q; mask, bias, scale, softcap) -> (output, weights, lse, scores, capped, biased)

[`attend`](@ref) with its intermediates, those of [`sdpa_steps`](@ref); same arguments and errors.
"""
function attend_steps(cache::Cache, q; mask = Mask(), bias = nothing, scale = nothing, softcap = nothing)
    @nospecialize mask bias scale softcap
    return attended(cache, q, mask, bias, scale, softcap)
end

function attended(cache::Cache, q, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    check_attend("attend", cache, q, held_slots(cache), mask, bias, scale, softcap)
    return tracked_attend!(cache, q, mask, bias, scale, softcap)
end

"""
    append_attend!(cache, q, k, v; lengths, padding, tokens, mask, bias, scale, softcap)

`append!` and then [`attend_steps`](@ref), or neither: everything is checked before anything is changed.
The errors are those of both.
"""
function append_attend!(
    cache::Cache,
    q,
    k,
    v;
    lengths = nothing,
    padding = "right",
    tokens = nothing,
    mask = Mask(),
    bias = nothing,
    scale = nothing,
    softcap = nothing
)
    @nospecialize lengths padding tokens mask bias scale softcap
    plan = planned(cache, k, v, AppendCall(lengths, padding, tokens))
    L = longest_after(cache, plan.counts)
    check_attend("append_attend", cache, q, L, mask, bias, scale, softcap)
    write!(cache, plan)
    return tracked_attend!(cache, q, mask, bias, scale, softcap)
end

# Everything is checked already.
function tracked_attend!(cache::Cache, q, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    steps = attend_held(cache, widened(q), mask, widened(bias), scale, softcap)
    track!(cache, steps.weights)
    return narrowed(steps, eltype(cache))
end

# Most kinds add nothing up.
track!(::Cache, weights) = nothing

# L: how many slots the longest row holds.
held_slots(cache::Cache) = longest(cache.rows)

# What knows where the next token of each row stands.
row_counters(cache::Cache) = cache.rows

# L, once so many slots more are in each row.
longest_after(cache::Cache, counts::Vector{Int}) = reduce(max, slot_counts(cache.rows) .+ counts; init = 0)

# Heads that have keys of their own, head size of keys and of values.
head_sizes(cache::Cache) = (cache.num_kv_heads, cache.head_dim, cache.value_dim)

# The mask of a call over the slots held: the last query stands on the last position of its row.
function aligned(cache::Cache, mask::Mask, Tq::Int)
    rows = cache.rows
    q_offset = mask.q_offset === nothing ? rows.next .- Tq : mask.q_offset
    return Mask(mask.keep, mask.causal, mask.window, slot_counts(rows), q_offset, position_table(rows))
end

# An append of keys and values that are kept in the type of the cache.
function planned_heads(cache::Cache{T}, k, v, counts::Vector{Int}, call::AppendCall) where {T}
    held_rope(cache) === nothing && return (counts = counts, padding = call.padding, new = (k = k, v = v))
    stored = narrowed(turned_keys(cache, k, counts, call.padding), T)::Array{T,4}  # (D, T, Hkv, B)
    return (counts = counts, padding = call.padding, new = (k = stored, v = v))
end

"""
    truncate!(cache, lengths)

Forget from the end: row b keeps its first `lengths[b]` slots.

Throws `AttentionError`: shape_mismatch, invalid_config.
"""
function truncate! end

function keep_first!(cache::Cache, lengths)
    check_truncate("truncate", lengths, slot_counts(cache.rows))
    cut!(cache.rows, lengths)
    return cache
end

"""
    reset!(cache)

Forget everything.
"""
function reset! end

function forget_all!(cache::Cache)
    cache.rows = emptied(cache.rows)
    return cache
end

"""
    reorder!(cache, index)

New row b is old row `index[b]`, counted from 0: a copy, so that one may be taken twice, as a beam search
does.

Throws `AttentionError`: shape_mismatch, invalid_config.
"""
function reorder!(cache::Cache, index)
    take_rows!(cache, check_index("reorder", index, cache.batch))
    return cache
end

take_rows!(cache::SlotCache, index::Vector{Int}) = copy_rows!(cache, index)

function copy_rows!(cache::SlotCache, index::Vector{Int})
    contents!(cache, map(x -> x[:, :, :, index], contents(cache)))
    cache.rows = reordered(cache.rows, index)
    return nothing
end

"""
    fork(cache)

A second cache with the same content. What happens to one of the two does not change the other.
"""
fork(cache::SlotCache) = deepcopy(cache)

"""
    stats(cache) -> (positions, bytes)
    stats(cache::PagedCache) -> (positions, bytes, pages)

How many slots each row holds, `(B,)`, or each head of a row, `(Hkv, B)`; how many bytes their keys, values,
codes, scales and zeros are, of a paged cache those of all pages in use; and how many pages are used, shared
by more than one row, and free.
"""
function stats(cache::SlotCache)
    counts = slot_counts(cache.rows)
    slot_bytes = sum(x -> sizeof(eltype(x)) * size(x, 1) * size(x, 3), contents(cache))
    return (positions = counts, bytes = slot_bytes * sum(counts))
end

# Room for so many slots more in each row. It at least doubles, so that n appends copy O(n) positions.
function make_room!(cache::SlotCache, counts::Vector{Int})
    room, needed = size(first(contents(cache)), 2), longest_after(cache, counts)
    needed > room && contents!(cache, map(x -> grown(x, max(needed, 2 * room)), contents(cache)))
    return nothing
end

# What is new, behind the slots of each row.
function write_new!(cache::SlotCache, plan)
    starts = slot_counts(cache.rows)  # (B,)
    foreach((x, new) -> write_slots!(x, new, starts, plan.counts, plan.padding), contents(cache), plan.new)
    return nothing
end

# Copies of some slots of each row, with their positions.
function read_slots(cache::SlotCache, slots)
    rows = picked(cache.rows, slots)
    copies = map(x -> gathered(x, slots, longest(rows)), contents(cache))
    return merge(copies, (lengths = slot_counts(rows), positions = position_table(rows)))
end

# The arrays of a cache; most have these two.
contents(cache::SlotCache) = (k = cache.k, v = cache.v)

function contents!(cache::SlotCache, new)
    cache.k, cache.v = new
    return nothing
end

# An empty array (n, room, H, B), with room for a capacity; sizes may be of any integer type.
function empty_slots(::Type{T}, n, num_heads, batch, capacity = nothing) where {T}
    @nospecialize n num_heads batch capacity
    dims = Int.((n, something(capacity, 0), num_heads, batch))
    # `zeros` takes a product that has wrapped around for the size.
    foldl(Base.checked_mul, (sizeof(T), max(dims[1], 1), dims[2:4]...))
    return zeros(T, dims)
end
