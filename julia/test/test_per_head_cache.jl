# Heads that hold slots of their own. The helpers are those of test_caches.jl.

using RosettaAttention: read_file

# Two key/value heads of D = 1 with the values 1, 2, 4, 8 and 16, 32, 64, 128, and keys of these numbers.
function two_heads(keys = zeros(8); options...)
    v = reshape(Float32[2^n for n in 0:7], 1, 4, 2, 1)
    return append!(PerHeadCache(1, 2, 1; options...), reshape(Float32.(keys), 1, 4, 2, 1), v)
end

means(cache) = attend(cache, zeros(Float32, 1, 1, 2, cache.batch))[:]

@testset "every head keeps its own slots, and as many as its budget says" begin
    keys = [9, 1, 2, 9, 1, 9, 9, 2]
    cache = evict!(two_heads(keys), KeyNorm(budget = 2))
    @test read(cache).positions[:, :, 1] == [1 0; 2 3] && means(cache) == [3, 72]
    cache = evict!(two_heads(keys), KeyNorm(budget = [1, 3]))
    @test lengths(cache)[:] == [1, 3] && read(cache).positions[:, :, 1] == [1 0; -1 1; -1 3]
    @test near(means(cache), Float32[2, 176/3])
    @test read(cache).k[:] == [1, 0, 0, 1, 9, 2]  # zero beyond what a head holds
    @test stats(cache).positions == lengths(cache) && stats(cache).bytes == 4 * 8
end

@testset "a head that holds nothing gives 0, and does not change the others" begin
    cache = two_heads()
    whole = means(cache)[2]
    evict!(cache, WindowPolicy(budget = [0, 4]))
    @test means(cache) == [0, whole]
    @test attend_steps(cache, zeros(Float32, 1, 1, 2, 1)).lse[:] == [-Inf32, log(4.0f0)]
    append!(cache, zeros(Float32, 1, 1, 2, 1), reshape(Float32[5, 256], 1, 1, 2, 1))
    @test near(means(cache), Float32[5, 496/5]) && read(cache).positions[1, :, 1] == [4, 0]
end

@testset "a contiguous cache while all heads hold the same: $T" for T in FLOATS
    rng, causal = MersenneTwister(100), Mask(causal = true, window = (3, 0))
    options = (rope = Rope(base = 30), track = true)
    cache, alike = PerHeadCache{T}(2, 2, 4, 3; options...), KVCache{T}(2, 2, 4, 3; options...)
    for n in (3, 0, 4)
        k, v = heads_of(rng, T, 2, 2, 4, 3, n)
        q, counts = randn(rng, T, 4, n, 4, 2), Int64[n, n ÷ 2]
        steps = [append_attend!(c, q, k, v; lengths = counts, mask = causal) for c in (cache, alike)]
        @test all(name -> same(steps[1][name], steps[2][name]), (:output, :lse, :weights))
        L = length(alike)
        bias, keep = randn(rng, T, L, 1, 4), rand(rng, L, n, 1, 2) .< 0.7
        for offset in (nothing, 2, Int64[1, 3])
            asked = Mask(keep = keep, causal = true, q_offset = offset)
            @test same((attend(c, q; mask = asked, bias = bias, softcap = 5) for c in (cache, alike))...)
        end
    end
    @test same(tracked(cache), tracked(alike)) && same(read(cache).k, read(alike).k)
    foreach(c -> shift!(evict!(reorder!(c, [1, 0]), [1]), 2, 2), (cache, alike))
    policy = WindowPolicy(budget = 3, sinks = 1)  # equal in all heads
    q = randn(rng, T, 4, 2, 4, 2)
    evict!(cache, policy), evict!(alike, policy)
    @test same(attend(cache, q; mask = causal), attend(alike, q; mask = causal))
    @test [lengths(alike)'; lengths(alike)'] == lengths(cache)
    before = read(cache)
    other = fork(cache)
    append!(reset!(other), heads_of(rng, T, 2, 2, 4, 3, 2)...)
    @test isequal(read(cache), before) && all(==(2), lengths(other))
end

@testset "snapkv in every head" begin
    rng = MersenneTwister(101)
    k, v = heads_of(rng, Float64, 2, 2, 4, 3, 6)
    q = randn(rng, 4, 2, 4, 2)
    cache = append!(PerHeadCache{Float64}(2, 2, 4, 3), k, v)
    evict!(cache, SnapKV(budget = [2, 3], q = q, pool = 3, recent = 1))
    for b in 1:2, h in 1:2
        one = append!(KVCache{Float64}(1, 1, 4, 3), k[:, :, h:h, b:b], v[:, :, h:h, b:b])
        policy = SnapKV(budget = h + 1, q = q[:, :, 2h-1:2h, b:b], pool = 3, recent = 1)
        @test read(evict!(one, policy)).positions[:] == read(cache).positions[1:h+1, h, b]
    end
end

@testset "a failing call changes nothing" begin
    rng = MersenneTwister(102)
    cache = PerHeadCache(2, 2, 4, 3; capacity = 7, track = true)
    k, v = heads_of(rng, Float32, 2, 2, 4, 3, 5)
    append!(cache, k, v; lengths = Int64[5, 3])
    evict!(cache, KeyNorm(budget = [2, 4]))
    q = randn(rng, Float32, 4, 1, 4, 2)
    attend(cache, q)
    before, weights, new = read(cache), tracked(cache), (k[:, 1:1, :, :], v[:, 1:1, :, :])
    calls = [
        :capacity_exceeded => () -> append!(cache, k, v),
        :shape_mismatch => () -> append!(cache, k, v[:, 1:2, :, :]),
        :invalid_config => () -> append!(cache, k, v; lengths = Int64[6, 0]),
        :invalid_config => () -> append!(cache, k, v; tokens = zeros(Int64, 5, 2)),
        :invalid_config => () -> truncate!(cache, [1, 1]),
        :invalid_config => () -> attend(cache, q; softcap = 0),
        :shape_mismatch => () -> attend(cache, q[:, :, 1:3, :]),
        :shape_mismatch => () -> attend(cache, q; bias = zeros(Float32, 9)),
        :shape_mismatch => () -> append_attend!(cache, q, new...; bias = zeros(Float32, 9)),
        :shape_mismatch => () -> reorder!(cache, [0, 1, 0, 1]),
        :invalid_config => () -> reorder!(cache, [2, 0]),
        :invalid_config => () -> shift!(cache, -9, 0),
        :invalid_config => () -> evict!(cache, 5),
    ]
    for (code, call) in calls
        @test code_of(call) == code
        @test isequal(read(cache), before) && same(tracked(cache), weights)
    end
end

@testset "its file, and sizes of 0" begin
    rng, path = MersenneTwister(103), tempname()
    new(; options...) = PerHeadCache(2, 2, 4, 3; track = true, options...)
    cache = new()
    k, v = heads_of(rng, Float32, 2, 2, 4, 3, 5)
    q = randn(rng, Float32, 4, 2, 4, 2)
    attend(append!(cache, k, v; lengths = Int64[5, 4]), q)
    evict!(cache, HeavyHitters(budget = [2, 3]))
    save(cache, path)
    tensors, metadata = read_file(path)
    @test metadata["kind"] == "per_head" && metadata["track"] == "true" && metadata["rope"] == "false"
    sizes = [size(tensors[name]) for name in ("lengths", "next", "positions", "k", "v", "tracked")]
    @test sizes == [(2, 2), (2, 2), (3, 2, 2), (4, 3, 2, 2), (3, 3, 2, 2), (3, 2, 2)]
    again = load!(new(), path)
    foreach(c -> append!(c, k, v; lengths = Int64[1, 0]), (cache, again))
    @test same(attend(again, q), attend(cache, q)) && same(tracked(again), tracked(cache))
    @test isequal(read(again), read(cache))
    contiguous = KVCache(2, 2, 4, 3; track = true), KVCache(4, 1, 4, 3; track = true)
    per_head = PerHeadCache(2, 2, 4, 3), new(rope = Rope()), PerHeadCache(1, 2, 4, 3; track = true)
    for other in (contiguous..., per_head...)
        @test code_of(() -> load!(other, path)) == :invalid_config && all(iszero, lengths(other))
    end
    @test code_of(() -> load!(new(capacity = 2), path)) == :capacity_exceeded

    none = PerHeadCache(0, 2, 4, 3)
    append!(none, zeros(Float32, 4, 3, 2, 0), zeros(Float32, 3, 3, 2, 0))
    @test size(attend(none, zeros(Float32, 4, 2, 4, 0))) == (3, 2, 4, 0)
    evict!(none, KeyNorm(budget = [0, 1]))
    empty = evict!(PerHeadCache(1, 2, 4, 3), WindowPolicy(budget = 1))
    @test size(read(empty).k) == (4, 0, 2, 1) && iszero(attend(empty, zeros(Float32, 4, 1, 2, 1)))
    for sizes in ((-1, 2, 4), (1, 0, 4), (1, 2, 0))
        @test code_of(() -> PerHeadCache(sizes...)) == :invalid_config
    end
    @test code_of(() -> PerHeadCache(1, 2, 4; capacity = -1)) == :invalid_config
end
