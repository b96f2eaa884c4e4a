# The quantised cache whose keys share a scale along the tokens, channel by channel.
#
# A few channels of keys are far larger than the others, in every token. A scale that all channels of a token
# share then leaves hardly a code to the small ones; along the tokens every channel has a scale of its own.
# So `key_groups` keys wait for each other, and are quantised when they are that many; the last ones of a
# row, too few for a group, are its tail and stay in Float32. Values have no such channels, and are quantised
# token by token.
#
# Letters: B batch, Hkv key/value heads, T new positions, Tq queries, L longest row, S slots from some group
# on, D and Dv head sizes, W and Wv numbers that hold their codes, n key_groups.
#
# Source: Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", 2024, section 3.

# n keys of a row, all heads of them.
struct KeyGroup
    codes::Array  # (W, n, Hkv)
    scale::Array{Float32,3}  # (D, 1, Hkv)
    zero::Array{Float32,3}  # (D, 1, Hkv), or without channels
end

# The keys of a row. Nothing in it ever changes, so that rows and forks may share it.
struct KeyRow
    groups::Vector{KeyGroup}
    tail::Array{Float32,3}  # (D, S, Hkv), S < n
end

"""
    KiviCache{T}(batch, num_kv_heads, head_dim, value_dim = head_dim; format, key_groups, group = nothing,
        zero_point = false, capacity = nothing, rope = nothing, rope_at = nothing, track = false)

A [`QuantisedCache`](@ref) that quantises keys by channel, in groups of `key_groups` >= 1 consecutive slots
of a row, and leaves the last ones, too few for a group, in Float32. `format` is "int8" or "int4"; `group` is
that of the values.

Throws `AttentionError`: invalid_config.
"""
mutable struct KiviCache{T} <: SlotCache{T}
    batch::Int
    num_kv_heads::Int
    head_dim::Int
    value_dim::Int
    format::String
    key_groups::Int
    group::Union{Nothing,Int}
    zero_point::Bool
    capacity::Union{Nothing,Int}
    rope::Union{Nothing,Rope}
    rope_at::String
    track::Bool
    k::Vector{KeyRow}  # (B,)
    v::Codes  # (Wv, room, Hkv, B), and (groups, room, Hkv, B)
    rows::Rows

    function KiviCache{T}(
        batch,
        num_kv_heads,
        head_dim,
        value_dim = head_dim;
        format,
        key_groups,
        group = nothing,
        zero_point = false,
        capacity = nothing,
        rope = nothing,
        rope_at = nothing,
        track = false
    ) where {T}
        check_head_sizes("kivi_cache", batch, num_kv_heads, head_dim, value_dim, rope, rope_at)
        check_flag("kivi_cache", "track", track)
        check_format("kivi_cache", format, group, zero_point)
        check_key_groups("kivi_cache", format, key_groups)
        check_capacity("kivi_cache", capacity, batch, num_kv_heads, max(head_dim, value_dim))
        as = empty_codes(format, Int(value_dim), group, zero_point)
        v = code_slots(as, num_kv_heads, batch, capacity)
        k = [empty_keys(Int(head_dim), Int(num_kv_heads)) for _ in 1:batch]
        sizes, how = (batch, num_kv_heads, head_dim, value_dim), (format, key_groups, group, zero_point)
        rows, at = Rows(Int(batch), track ? Int(num_kv_heads) : 0), something(rope_at, "append")
        return new{T}(sizes..., how..., capacity, rope, at, track, k, v, rows)
    end
end

KiviCache(sizes...; options...) = KiviCache{Float32}(sizes...; options...)

empty_keys(D::Int, num_kv_heads::Int) = KeyRow(KeyGroup[], zeros(Float32, D, 0, num_kv_heads))

# Of what lies slot by slot; the keys are beside it.
contents(cache::KiviCache) = (v_codes = cache.v.codes, v_scale = cache.v.scale, v_zero = cache.v.zero)

function contents!(cache::KiviCache, new)
    cache.v = with_arrays(cache.v, new.v_codes, new.v_scale, new.v_zero)
    return nothing
end

function planned(cache::KiviCache, k, v, call::AppendCall)
    # 1. check: everything, before anything is changed; a number without a code before its group is full
    counts = check_append("append", cache, k, v, call)
    check_room("append", longest_after(cache, counts), cache.capacity)
    new_keys = single(zero_uncounted(turned_keys(cache, k, counts, call.padding), counts, call.padding))
    check_finite("append", "k", new_keys)

    # 2. tail: new keys join those that wait
    keys = map(1:cache.batch) do b
        row, part = cache.k[b], counted_part(size(k, 2), counts[b], call.padding)
        grouped_keys(cache, row.groups, cat(row.tail, new_keys[:, part, :, b]; dims = 2))
    end
    v_codes = quantised(zero_uncounted(widened(v), counts, call.padding), cache.v)  # (Wv, T, Hkv, B)
    new = (v_codes = v_codes.codes, v_scale = v_codes.scale, v_zero = v_codes.zero)
    return (counts = counts, padding = call.padding, new = new, keys = keys)
end

# These groups and, behind them, keys (D, S, Hkv), of which as many are quantised as fill groups.
function grouped_keys(cache::KiviCache, groups, keys::Array{Float32,3})
    n, S = cache.key_groups, size(keys, 2)
    full = S - S % n
    more = [key_group(cache, keys[:, first+1:first+n, :]) for first in 0:n:full-1]
    return KeyRow([groups; more], keys[:, full+1:S, :])
end

function key_group(cache::KiviCache, keys::Array{Float32,3})
    # 3. quantise: as the channels of a token otherwise are, with tokens for channels
    D, n, Hkv = size(keys)
    as = empty_codes(cache.format, n, nothing, cache.zero_point)
    by_token = reshape(permutedims(keys, (2, 1, 3)), n, D * Hkv)
    scale, zero = group_scales(by_token, as)  # (1, D·Hkv), (1, D·Hkv)
    steps = reshape(rounded_steps(by_token, scale, zero, as), n, D, Hkv)
    by_channel = reshape(permutedims(steps, (2, 1, 3)), D, n * Hkv)
    codes = packed_codes(by_channel, channels_of(cache))  # (W, n·Hkv)
    channels = cache.zero_point ? D : 0
    zero = reshape(zero, D, 1, Hkv)[1:channels, :, :]
    return KeyGroup(reshape(codes, :, n, Hkv), reshape(scale, D, 1, Hkv), zero)
end

# How the codes of a key are packed.
channels_of(cache::KiviCache) = empty_codes(cache.format, cache.head_dim, nothing, cache.zero_point)

# The keys of a row from group `first` on, counted from 0: (D, S, Hkv).
function restored_keys(cache::KiviCache, row::KeyRow, first::Int = 0)
    # 4. restore: every channel of a group by its own scale; the tail is there as it came
    keys = map(row.groups[first+1:end]) do group
        W, n, Hkv = size(group.codes)
        steps = unpacked_codes(reshape(group.codes, W, n * Hkv), channels_of(cache))  # (D, n·Hkv)
        values = Float32.(reshape(steps, :, n, Hkv)) .* group.scale  # (D, n, Hkv)
        cache.zero_point ? values .+ group.zero : values
    end
    return cat(keys..., row.tail; dims = 2)::Array{Float32,3}
end

function write!(cache::KiviCache, plan)
    make_room!(cache, plan.counts)
    write_new!(cache, plan)  # (Wv, room, Hkv, B)
    cache.k = plan.keys
    advance!(cache.rows, plan.counts)
    return nothing
end

function attend_held(cache::KiviCache{T}, q, mask, bias, scale, softcap) where {T}
    @nospecialize mask bias scale softcap
    # 5. attend: as in a contiguous cache of these numbers
    k, v = map(x -> convert(Array{compute_type(T),4}, x), restored_heads(cache))  # (D, L, Hkv, B), (Dv, …)
    return attend_restored(cache, k, v, q, mask, bias, scale, softcap)
end

function restored_heads(cache::KiviCache)
    k = zeros(Float32, cache.head_dim, longest(cache.rows), cache.num_kv_heads, cache.batch)
    for (b, row) in enumerate(cache.k)
        keys = restored_keys(cache, row)
        k[:, 1:size(keys, 2), :, b] = keys
    end
    held = held_codes(cache)
    return k, restored(with_arrays(cache.v, held.v_codes, held.v_scale, held.v_zero))  # (Dv, L, Hkv, B)
end

# The groups before that of a slot, counted from 0; where that one begins; and the keys from there on,
# restored.
function opened_keys(cache::KiviCache, row::KeyRow, slot::Int)
    first = slot ÷ cache.key_groups
    return row.groups[1:first], first * cache.key_groups, restored_keys(cache, row, first)
end

function truncate!(cache::KiviCache, lengths)
    check_truncate("truncate", lengths, slot_counts(cache.rows))
    # 6. truncate: what is left of a group that is cut waits in the tail
    cache.k = map(cache.k, lengths) do row, n
        groups, start, keys = opened_keys(cache, row, Int(n))
        KeyRow(groups, keys[:, 1:n-start, :])
    end
    cut!(cache.rows, lengths)
    return cache
end

function keep_slots!(cache::KiviCache, kept)
    keys = map(cache.k, kept, slot_counts(cache.rows)) do row, slots, n
        gone = findfirst(j -> j > length(slots) || slots[j] != j, 1:n)
        gone === nothing && return row
        groups, start, old = opened_keys(cache, row, gone - 1)
        grouped_keys(cache, groups, old[:, filter(>(start), slots).-start, :])
    end
    contents!(cache, map(x -> gathered(x, kept, size(x, 2)), contents(cache)))
    cache.k, cache.rows = keys, picked(cache.rows, kept)
    return cache
end

function turn_on!(cache::KiviCache{T}, by::Int64, from::Int64) where {T}
    cache.k = map(cache.k, cache.rows.positions) do row, list
        first_moved = findfirst(>=(from), list)
        first_moved === nothing && return row
        groups, start, keys = opened_keys(cache, row, first_moved - 1)
        wide = convert(Array{compute_type(T),3}, keys[:, first_moved-start:end, :])
        turned = single(turned_by(reshape(wide, size(wide)..., 1), cache.rope, by))  # (D, moved, Hkv, 1)
        check_finite("shift", "by", turned)
        keys[:, first_moved-start:end, :] = turned
        grouped_keys(cache, groups, keys)
    end
    return nothing
end

function reset!(cache::KiviCache)
    cache.k = [empty_keys(cache.head_dim, cache.num_kv_heads) for _ in 1:cache.batch]
    return forget_all!(cache)
end

function take_rows!(cache::KiviCache, index::Vector{Int})
    cache.k = cache.k[index]
    return copy_rows!(cache, index)
end

function Base.read(cache::KiviCache{T}) where {T}
    # 7. read: the tail as it is, all else restored; rounded once to a half type
    k, v = map(x -> narrow(x, T)::Array{T,4}, restored_heads(cache))  # (D, L, Hkv, B), (Dv, L, Hkv, B)
    rows = cache.rows
    return (k = k, v = v, lengths = slot_counts(rows), positions = position_table(rows))
end

"""
    read_codes(cache::KiviCache)

As of a [`QuantisedCache`](@ref), but `k_codes` are zero where the tail is, `k_scale` and `k_zero` are `(D,
groups, Hkv, B)`, and `k_tail` is `Float32` `(D, tail, Hkv, B)`: as many groups, and as long a tail, as a row
has at most, zero beyond.
"""
function read_codes(cache::KiviCache)
    D, Hkv, B, n = cache.head_dim, cache.num_kv_heads, cache.batch, cache.key_groups
    counts, as = slot_counts(cache.rows), channels_of(cache)
    codes = zeros(code_type(as), code_width(as), longest(cache.rows), Hkv, B)  # (W, L, Hkv, B)
    scale = zeros(Float32, D, most(counts .÷ n), Hkv, B)  # (D, groups, Hkv, B)
    zero = zeros(Float32, cache.zero_point ? D : 0, size(scale, 2), Hkv, B)
    tail = zeros(Float32, D, most(counts .% n), Hkv, B)  # (D, tail, Hkv, B)
    for (b, row) in enumerate(cache.k)
        for (g, group) in enumerate(row.groups)
            codes[:, (g-1)*n+1:g*n, :, b] = group.codes
            scale[:, g:g, :, b] = group.scale
            zero[:, g:g, :, b] = group.zero
        end
        tail[:, 1:size(row.tail, 2), :, b] = row.tail
    end
    v = held_codes(cache)
    held = (k_codes = codes, k_scale = scale, k_tail = tail, v_codes = v.v_codes, v_scale = v.v_scale)
    return cache.zero_point ? merge(held, (k_zero = zero, v_zero = v.v_zero)) : held
end

most(counts) = reduce(max, counts; init = 0)

function stats(cache::KiviCache)
    counts = slot_counts(cache.rows)
    of_values = sum(x -> sizeof(eltype(x)) * size(x, 1) * size(x, 3), contents(cache)) * sum(counts)
    parts = [x for row in cache.k for group in row.groups for x in (group.codes, group.scale, group.zero)]
    of_keys = sum(Int[sizeof(x) for x in [parts; [row.tail for row in cache.k]]])
    return (positions = counts, bytes = of_values + of_keys)
end

# The keys that a file holds.
function fill_keys!(cache::KiviCache, rows::Rows, new)
    n = cache.key_groups
    group(b, g) = KeyGroup(
        new.k_codes[:, (g-1)*n+1:g*n, :, b],
        new.k_scale[:, g:g, :, b],
        cache.zero_point ? new.k_zero[:, g:g, :, b] : zeros(Float32, 0, 1, cache.num_kv_heads),
    )
    cache.k = map(enumerate(slot_counts(rows))) do (b, len)
        KeyRow(KeyGroup[group(b, g) for g in 1:len÷n], new.k_tail[:, 1:len%n, :, b])
    end
    return nothing
end
