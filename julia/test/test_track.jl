# Weights that are added up beside the slots that they were given to. The helpers are those of test_caches.jl.

@testset "weights are added up, and go where their slots go: $(typeof(new()))" for new in (
    () -> KVCache(1, 1, 1; track = true),
    () -> PerHeadCache(1, 1, 1; track = true),
    () -> QuantisedCache(1, 1, 1; format = "f16", track = true),
    () -> KiviCache(1, 1, 1; format = "int8", key_groups = 2, track = true),
)
    zero_keys(values) = (v = reshape(Float32.(values), 1, :, 1, 1); (zero(v), v))
    ask(cache, n = 1; options...) = attend(cache, zeros(Float32, 1, n, 1, 1); options...)
    cache = append!(new(), zero_keys([1, 2])...)
    ask(cache, 2; mask = Mask(causal = true))  # 1, and 1/2 and 1/2
    @test tracked(cache)[:] == [1.5, 0.5]
    append!(cache, zero_keys([4, 8])...)
    @test tracked(cache)[:] == [1.5, 0.5, 0, 0]
    ask(cache)
    @test tracked(cache)[:] == [1.75, 0.75, 0.25, 0.25]
    other = fork(cache)
    ask(other)
    shift!(evict!(cache, [1]), 5, 2)
    @test tracked(cache)[:] == [1.75, 0.25, 0.25] && tracked(other)[:] == [2, 1, 0.5, 0.5]
    path = tempname()
    save(cache, path)
    again = load!(new(), path)
    @test tracked(again)[:] == [1.75, 0.25, 0.25]
    if !(again isa PerHeadCache)
        append!(truncate!(again, [2]), zero_keys([3])...)
        @test tracked(again)[:] == [1.75, 0.25, 0]
    end
    @test tracked(append!(reset!(again), zero_keys([3])...))[:] == [0]
    append_attend!(again, zeros(Float32, 1, 1, 1, 1), zero_keys([3])...)
    @test tracked(again)[:] == [0.5, 0.5]
    @test code_of(() -> ask(again; softcap = 0)) == :invalid_config && tracked(again)[:] == [0.5, 0.5]
end

@testset "each head has its own sums, of all queries that read it, and rows take theirs along" begin
    rng = MersenneTwister(114)
    k, v = heads_of(rng, Float64, 2, 2, 4, 3, 4)
    q = randn(rng, 4, 3, 4, 2)
    cache = append!(KVCache{Float64}(2, 2, 4, 3; track = true), k, v; lengths = Int64[4, 2])
    weights = attend_steps(cache, q; mask = Mask(causal = true)).weights  # (L, Tq, Hq, B)
    sums = [sum(weights[j, :, 2h-1:2h, b]) for j in 1:4, h in 1:2, b in 1:2]
    @test near(tracked(cache), sums)
    reorder!(cache, [1, 1])
    @test near(tracked(cache), sums[1:2, :, [2, 2]])
    attend(cache, q[:, :, :, [1, 1]])
    @test near(tracked(cache)[:, :, 1], tracked(cache)[:, :, 2]) && size(tracked(cache)) == (2, 2, 2)
    @test tracked(cache) != sums[1:2, :, [2, 2]]
    # a Float32 weight in a half cache: not rounded before it is added
    nothing_much = zeros(Float16, 1, 3, 1, 1)
    half = append!(KVCache{Float16}(1, 1, 1; track = true), nothing_much, nothing_much)
    attend(half, zeros(Float16, 1, 1, 1, 1))
    @test tracked(half)[:] == fill(Float64(1 / 3.0f0), 3)
    # a layer's step is an attend too
    w(rows, columns) = randn(rng, rows, columns)
    layer = MultiHeadAttention(w(6, 16), w(6, 8), w(6, 6), w(12, 6); num_heads = 4, num_kv_heads = 2)
    one = KVCache{Float64}(1, 2, 4, 3; track = true)
    decode!(layer, randn(rng, 6, 2, 1), one)
    @test near(vec(sum(tracked(one); dims = 1)), [4.0, 4.0])  # two queries of two heads
end

@testset "what is not tracked" begin
    tracking, plain, path = KVCache(1, 1, 1; track = true), KVCache(1, 1, 1), tempname()
    foreach(cache -> append_columns!(cache, [1, 2][:, :]), (tracking, plain))
    @test stats(tracking) == stats(plain) && keys(read(tracking)) == keys(read(plain))
    for cache in (plain, RotatingCache(1, 1, 1; window = 2), LatentCache(1, 1, 1))
        @test code_of(() -> tracked(cache)) == :invalid_config
    end
    for (from, into) in ((tracking, plain), (plain, tracking))
        save(from, path)
        @test code_of(() -> load!(into, path)) == :invalid_config
    end
    for track in (1, "true", NaN, nothing)
        @test code_of(() -> KVCache(1, 1, 1; track = track)) == :invalid_config
    end
end
