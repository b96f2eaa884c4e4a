# Scaled dot-product attention in blocks of queries whose scores stay in the cache: the numbers of sdpa.
#
#     per block: s = (scale · Q)ᵀ K,  p = exp(s - max s),  output = V pᵀ / Σ p,  lse = max s + log(Σ p)
#
# What it changes against sdpa.jl: no table of all scores is held, only those of one block, in a buffer that
# is made once; both products are calls of BLAS (`gemm!`, which compiles in a tenth of the time of `mul!`),
# and what stands between them is done in place, by loops that the compiler turns into vector code: the
# exponential is a chain of multiply-adds (simd_exp.jl). The queries of a group lie beside each other, so
# that K and V are read once for all of them. Keys that no query of a block sees by its position are not
# touched. The division is left to the end.
#
# What that gains over sdpa.jl, Float32, one thread, on a Xeon with AVX-512: 90 times as fast at 512 queries
# and keys of 8 heads of 64, 81 times when causal, 13 times for a decode step of 1024 keys. Measured by
# julia/experiments/simd_ratio.jl naive,blocked,simd 512,causal-512,decode-1024 8
#
# Letters: B batch, Hkv key/value heads, G query heads a KV head, Tq and Tk query and key lengths, D and Dv
# head sizes, R rows of a block: consecutive queries of the G heads of one KV head, head by head.
#
# Source: Lam, Rothberg and Wolf, "The cache performance and optimizations of blocked algorithms", 1991.

const BLOCK_BYTES = 1 << 20  # of the scores of a block: half of an L2 of 2 MiB
const BLOCK_ROWS = 16:128  # fewer make a slow product; with more, causal would compute more that is hidden

"""
    blocked(q, k, v; mask = Mask(), bias, scale, softcap, sinks) -> (output, lse)

[`sdpa`](@ref) in blocks, by BLAS; same arguments and errors, but for the dropout. `output` is `(Dv, Tq, Hq,
B)`, `lse` `(Tq, Hq, B)`.
"""
function blocked(q, k, v; mask = Mask(), bias = nothing, scale = nothing, softcap = nothing, sinks = nothing)
    @nospecialize mask bias scale softcap sinks
    check_sdpa("blocked", q, k, v, mask, bias, scale, softcap, sinks, nothing)
    check_wide("blocked", q)
    wide_q, wide_k, wide_v = convert(Array, widened(q)), dense_columns(widened(k)), dense_columns(widened(v))
    state = blocked_attention(wide_q, wide_k, wide_v, mask, widened(bias), scale, softcap, widened(sinks))
    return narrowed(state, eltype(q))
end

function blocked_attention(q, k, v, mask, bias, scale, softcap, sinks)
    @nospecialize mask bias scale softcap sinks
    T = eltype(q)
    D, Tq, Hq, B = size(q)
    Dv, Tk, Hkv, _ = size(v)
    options = SlotOptions{T}(q, k, mask, bias, softcap)
    scale = scale_of(T, scale, D)
    line = options.G * Tq
    most = clamp(BLOCK_BYTES ÷ (sizeof(T) * max(Tk, 1)), first(BLOCK_ROWS), last(BLOCK_ROWS))  # R
    output = Array{T}(undef, Dv, Tq, Hq, B)  # (Dv, Tq, Hq, B)
    lse = Array{T}(undef, Tq, Hq, B)  # (Tq, Hq, B)
    set_sinks!(lse, per_head(sinks))
    lines_q = reshape(q, D, line, Hkv, B)  # (D, G·Tq, Hkv, B)
    lines_output = reshape(output, Dv, line, Hkv, B)  # (Dv, G·Tq, Hkv, B)
    lines_lse = reshape(lse, line, Hkv, B)  # (G·Tq, Hkv, B)
    memory, sight = Vector{T}(undef, most * Tk), Sight(most)  # of all blocks in turn

    for b in 1:B, g in 1:Hkv, queries in tiles(1:line, most)
        # 1. rows: some queries of a group, scaled, and the keys that any of them can see
        rows = BlockRows(b, g, first(queries) - 1, length(queries))
        R = rows.count
        scaled = scale .* view(lines_q, :, queries, g, b)  # (D, R)
        keys, common = reach!(sight, options, rows)
        values = view(v, :, keys, g, b)  # (Dv, keys)

        # 2. scores: in the place of the weights to come
        s = reshape(view(memory, 1:R*length(keys)), R, length(keys))  # (R, keys)
        LinearAlgebra.BLAS.gemm!('T', 'N', one(T), scaled, view(k, :, keys, g, b), zero(T), s)

        # 3. mask: softcap, bias and mask, in place, and only what the block needs
        is_plain(options, keys, common) || alter!(Slots(memory, R, 1), options, rows, sight, keys)

        # 4. softmax: exponentials below the maximum, in place, and their sum; the sink has no value
        logits_of_sinks = view(lines_lse, queries, g, b)  # (R,)
        top = max.(column_maximum(s), logits_of_sinks)  # (R,)
        shift = ifelse.(top .== -Inf, zero(T), top)  # (R,); -Inf - -Inf is NaN
        hidden = has_hidden(s) && !all(isfinite, values) ? s .== -Inf : nothing
        total = exponentials!(s, shift) .+ exp.(logits_of_sinks .- shift)  # (R,)
        replace!(total, zero(T) => one(T))

        # 5. weighted sum: all at once, unless a hidden slot's weight, 0, would meet a NaN or an infinity
        sums = zeros(T, Dv, R)  # (Dv, R)
        if hidden === nothing
            LinearAlgebra.BLAS.gemm!('N', 'T', one(T), values, s, zero(T), sums)
        else
            weigh_shown!(sums, values, s, hidden)
        end

        # 6. output: one division a row
        view(lines_output, :, queries, g, b) .= sums ./ transpose(total)
        view(lines_lse, queries, g, b) .= top .+ log.(total)
    end
    return (output = output, lse = lse)
end

# The largest of each row; -Inf where there is nothing, or nothing but NaN, which the exponentials find again.
function column_maximum(s::AbstractMatrix{T}) where {T}
    top = fill(T(-Inf), size(s, 1))
    for j in axes(s, 2)
        @inbounds @simd for r in eachindex(top)
            top[r] = ifelse(s[r, j] > top[r], s[r, j], top[r])
        end
    end
    return top
end

function has_hidden(s::AbstractMatrix)
    found = false
    @inbounds @simd for n in eachindex(s)
        found |= s[n] == -Inf
    end
    return found
end

# exp(s - shift) in place, and its sum over the keys.
function exponentials!(s::AbstractMatrix{T}, shift::Vector{T}) where {T}
    total = zeros(T, length(shift))
    for j in axes(s, 2)
        @inbounds @simd for r in eachindex(shift)
            e = exp_of(s[r, j] - shift[r])
            s[r, j] = e
            total[r] += e
        end
    end
    return total
end

# A hidden slot is passed over: its weight, 0, times NaN would be NaN.
function weigh_shown!(sums, values, weights, hidden)
    for j in axes(weights, 2), r in axes(weights, 1)
        hidden[r, j] && continue
        for d in axes(sums, 1)
            sums[d, r] += weights[r, j] * values[d, j]
        end
    end
    return sums
end
