# Which registers of a tile see which keys by their position.
#
# What it changes: at the edge of what is seen, the diagonal when causal, a block of keys is cut into steps,
# and a step is scored, exponentiated and weighed for those registers only of which some query sees some key
# of it. Of a square of 64 queries and 64 keys on the diagonal, 10 of 16 parts are left. The others count as
# hidden: they are never written or read.
#
# What that gains against whole tiles, and against scores hidden one by one, Float32, one thread, on a Xeon
# with AVX-512: 1.28 to 1.31 times as fast at 256 queries and keys, causal, and 1.16 to 1.21 at 512. Measured
# by julia/experiments/simd_ratio.jl simd causal-256,causal-512 3 with this file and before it, in turns.
#
# Letters: N lanes of a register, M registers and R = M · N rows of a tile.

# For each register, the keys that some query of it sees, from first to last, and those that all of them see.
struct Edges
    firsts::Vector{Int}  # (M,)
    lasts::Vector{Int}
    common_firsts::Vector{Int}
    common_lasts::Vector{Int}
end
Edges(M::Int) = Edges((Vector{Int}(undef, M) for _ in 1:4)...)

# A register of nothing but rows past the last one does not exist. One that sees no key has its first one
# after its last one, far apart.
function find_edges!(edges::Edges, sight::Sight, rows::Int, N::Int)
    for m in 1:cld(rows, N)
        first_key, last_key, first_common, last_common = typemax(Int), 0, 1, typemax(Int)
        for r in (m-1)*N+1:min(m * N, rows)
            start, stop = sight.starts[r], sight.stops[r]
            first_common, last_common = max(first_common, start), min(last_common, stop)
            if start <= stop
                first_key, last_key = min(first_key, start), max(last_key, stop)
            end
        end
        edges.firsts[m], edges.lasts[m] = first_key, last_key
        edges.common_firsts[m], edges.common_lasts[m] = first_common, last_common
    end
    return nothing
end

# Consecutive keys, and the `count` registers after the first `skipped` ones, which see them: outside of these
# no slot is seen. Where all queries of them see all of the keys, it is whole.
struct Stretch
    keys::UnitRange{Int}
    skipped::Int
    count::Int
    whole::Bool
end

# Which registers see these keys.
function stretch_of(edges::Edges, M::Int, keys::UnitRange{Int})
    low, high, whole = M + 1, 0, true
    for m in 1:M
        if edges.firsts[m] <= last(keys) && first(keys) <= edges.lasts[m]
            low, high = min(low, m), m
        end
    end
    for m in low:high
        whole &= edges.common_firsts[m] <= first(keys) && last(keys) <= edges.common_lasts[m]
    end
    return Stretch(keys, min(low - 1, M), max(high - low + 1, 0), whole)
end

# Cuts keys into stretches, each as long as it can be, at multiples of the lanes, or of 8: a narrower tile
# takes 8 keys at once (simd_kernel.jl).
function cut!(stretches::Vector{Stretch}, edges::Edges, M::Int, N::Int, keys::UnitRange{Int})
    empty!(stretches)
    step = max(N, 8)
    start = first(keys)
    while start <= last(keys)
        stop = min(cld(start, step) * step, last(keys))
        next = stretch_of(edges, M, start:stop)
        if !isempty(stretches) && alike(stretches[end], next)
            next = Stretch(first(stretches[end].keys):stop, next.skipped, next.count, next.whole)
            stretches[end] = next
        else
            push!(stretches, next)
        end
        start = stop + 1
    end
    return stretches
end

alike(a::Stretch, b::Stretch) = (a.skipped, a.count, a.whole) == (b.skipped, b.count, b.whole)
