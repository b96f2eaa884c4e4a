# The latent cache: of each token one latent and one rotary key, which all heads share.
#
# It is what multi-head latent attention holds in place of keys and values; its queries come absorbed, so
# that they attend to the latent itself.
#
#     score = scale · (q[1:R]·latent + q[R+1:end]·rope_key),   output = weighted sum of latents
#
# Letters: B batch, H heads, T new positions, Tq queries, L longest row, R width of the latent, Dr of the
# rotary key.
#
# Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.

"""
    LatentCache{T}(batch, latent_dim, rope_dim; capacity = nothing)

A [`Cache`](@ref) of latents `(R, T, B)`, R >= 1, and rotary keys `(Dr, T, B)`, which come rotated. Queries
are `(R+Dr, Tq, H, B)`, outputs `(R, Tq, H, B)`.

Throws `AttentionError`: invalid_config.
"""
mutable struct LatentCache{T} <: SlotCache{T}
    batch::Int
    latent_dim::Int
    rope_dim::Int
    capacity::Union{Nothing,Int}
    latent::Array{T,4}  # (R, room, 1, B)
    rope_key::Array{T,4}  # (Dr, room, 1, B)
    rows::Rows

    function LatentCache{T}(batch, latent_dim, rope_dim; capacity = nothing) where {T}
        check_whole("latent_cache", "batch", batch, 0)
        check_whole("latent_cache", "latent_dim", latent_dim, 1)
        check_whole("latent_cache", "rope_dim", rope_dim, 0)
        check_numbers("latent_cache", "batch", batch, max(latent_dim, rope_dim))
        check_capacity("latent_cache", capacity, batch, 1, max(latent_dim, rope_dim))
        latent = empty_slots(T, latent_dim, 1, batch, capacity)
        rope_key = empty_slots(T, rope_dim, 1, batch, capacity)
        return new{T}(batch, latent_dim, rope_dim, capacity, latent, rope_key, Rows(Int(batch)))
    end
end

LatentCache(sizes...; options...) = LatentCache{Float32}(sizes...; options...)

contents(cache::LatentCache) = (latent = cache.latent, rope_key = cache.rope_key)

function contents!(cache::LatentCache, new)
    cache.latent, cache.rope_key = new
    return nothing
end

head_sizes(cache::LatentCache) = (1, cache.latent_dim + cache.rope_dim, cache.latent_dim)

function planned(cache::LatentCache, latent, rope_key, call::AppendCall)
    # 1. check: everything, before anything is changed
    counts = check_latent_append("append", cache, latent, rope_key, call)
    check_room("append", longest_after(cache, counts), cache.capacity)
    one_head(x) = reshape(x, size(x, 1), size(x, 2), 1, size(x, 3))  # (n, T, 1, B)
    new = (latent = one_head(latent), rope_key = one_head(rope_key))
    return (counts = counts, padding = call.padding, new = new)
end

function write!(cache::LatentCache, plan)
    # 2. write: each row at its own end
    make_room!(cache, plan.counts)
    write_new!(cache, plan)
    advance!(cache.rows, plan.counts)
    return nothing
end

function attend_held(cache::LatentCache, q, mask, bias, scale, softcap)
    @nospecialize mask bias scale softcap
    # 3. attend: one key/value head for all; its key is latent and rotary key, its value the latent alone
    L = longest(cache.rows)
    v = widened(view(cache.latent, :, 1:L, :, :))  # (R, L, 1, B)
    k = cat(v, widened(view(cache.rope_key, :, 1:L, :, :)); dims = 1)::Array{eltype(v),4}  # (R+Dr, L, 1, B)
    held = aligned(cache, mask, size(q, 2))
    return attention(q, k, v, held, bias, scale, softcap, nothing, nothing)
end

truncate!(cache::LatentCache, lengths) = keep_first!(cache, lengths)

reset!(cache::LatentCache) = forget_all!(cache)

function Base.read(cache::LatentCache)
    # 4. read: by selection, since junk may be NaN
    held = read_slots(cache, all_slots(cache.rows))  # (R, L, 1, B), (Dr, L, 1, B)
    headless(x) = dropdims(x; dims = 3)
    return merge(held, (latent = headless(held.latent), rope_key = headless(held.rope_key)))
end
