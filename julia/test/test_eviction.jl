# Which slots a policy keeps, and how slots are taken out and moved. The helpers are those of test_caches.jl.

using RosettaAttention: slots_that_stay

stay(scores, budget; sinks = 0, recent = 0, pool = 1) =
    slots_that_stay(Float64[scores...], budget, sinks, recent, pool)

# Caches of one head with keys of 0 and the values 1, 2, 4, 8: an attend gives means of what is held.
const FOUR = reshape(Float32[1, 2, 4, 8], 1, 4, 1, 1)
four_values() = append!(KVCache(1, 1, 1; track = true), zero(FOUR), FOUR)
positions_of(cache) = read(cache).positions

@testset "the slots that stay, by hand" begin
    @test [stay((5, 1, 4, 2, 3), n) for n in 0:6] ==
        [[], [1], [1, 3], [1, 3, 5], [1, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]

    # of equal scores the first, NaN below every number
    @test stay((1, 1, 1, 1), 2) == [1, 2] && stay((1, 2, 1, 2, 1), 3) == [1, 2, 4]
    @test stay((-0.0, 0.0, -0.0), 1) == [1] && stay((NaN, -Inf, NaN, 0), 2) == [2, 4]
    @test stay((NaN, NaN, NaN), 2) == stay((NaN, 1, NaN), 2) == [1, 2]

    # the first and the last do not compete
    scores = (0, 9, 1, 8, 2, 0)
    @test stay(scores, 3; sinks = 1) == [1, 2, 4] && stay(scores, 3; recent = 1) == [2, 4, 6]
    @test stay(scores, 4; sinks = 1, recent = 2) == [1, 2, 5, 6]
    @test stay(scores, 3; sinks = 1, recent = 2) == [1, 5, 6]
    @test stay(scores, 0; sinks = 1, recent = 2) == []

    # a pool lifts the neighbours, but not across those that do not compete
    scores = (0, 0, 0, 7, 1, 2, 9)
    @test stay(scores, 4; recent = 1) == [4, 5, 6, 7] && stay(scores, 4; recent = 1, pool = 3) == [3, 4, 5, 7]
    @test stay((9, 0, 1, 0, 2), 2; sinks = 1, pool = 3) == [1, 4]
    @test stay((1, NaN, 0, 0), 2; pool = 3) == [1, 2] && stay((1, 2, 3), 1; pool = 2^61 + 1) == [1]
end

@testset "a window (StreamingLLM)" begin
    cache = evict!(four_values(), WindowPolicy(budget = 3, sinks = 1))
    @test positions_of(cache)[:] == [0, 2, 3] && near(mean_of(cache), Float32[13/3])
    evict!(cache, WindowPolicy(budget = 1))
    @test mean_of(cache) == [8]
    evict!(cache, WindowPolicy(budget = 0, sinks = 5))
    @test mean_of(cache) == [0] && lengths(cache) == [0]
    append_columns!(cache, [16][:, :])
    @test positions_of(cache)[:] == [4] && mean_of(cache) == [16]
end

@testset "heavy hitters (H2O)" begin
    cache = four_values()
    for shown in ([0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1])
        attend(cache, zeros(Float32, 1, 1, 1, 1); mask = Mask(keep = shown .== 1))
    end
    @test tracked(cache)[:] == [0, 0.5, 1, 1.5]
    @test positions_of(evict!(cache, HeavyHitters(budget = 2)))[:] == [2, 3]
    @test tracked(cache)[:] == [1, 1.5]
    @test positions_of(evict!(four_values(), HeavyHitters(budget = 2)))[:] == [0, 1]  # nobody has asked yet
end

@testset "snapkv" begin
    x = reshape([1.0, 3, 2, 0], 1, 4, 1, 1)
    new() = append!(KVCache{Float64}(1, 1, 1; track = true), x, x)
    q = ones(1, 1, 2, 1)  # two heads that read the one of the cache
    kept(; options...) = positions_of(evict!(new(), SnapKV(; budget = 2, q = q, options...)))[:]
    @test kept() == [1, 2] && kept(scale = -1) == [0, 3] && kept(pool = 3) == [0, 1]
    cache = evict!(new(), SnapKV(budget = 2, q = q))
    @test iszero(tracked(cache))  # nothing was given
    # causal: 1/3 + 1/4 each of the first two queries' slots, and of the last a quarter
    flat = append!(KVCache{Float64}(1, 1, 1), reshape([0, 0, 0, 0.01], 1, 4, 1, 1), x)
    @test positions_of(evict!(flat, SnapKV(budget = 1, q = ones(1, 2, 1, 1))))[:] == [0]
end

@testset "snapkv asks as an attend does, $rope_at" for rope_at in ("append", "attend")
    rng = MersenneTwister(80)
    k, v = heads_of(rng, Float64, 1, 2, 4, 3, 6)
    q = randn(rng, 4, 3, 4, 1)
    cache = KVCache{Float64}(1, 2, 4, 3; rope = Rope(base = 3), rope_at = rope_at, track = true)
    append!(cache, k, v)
    twin = fork(cache)
    attend(twin, q; mask = Mask(causal = true))
    sums = vec(sum(tracked(twin); dims = 2))
    evict!(cache, SnapKV(budget = 3, q = q))
    @test positions_of(cache)[:] == sort(sortperm(sums; rev = true)[1:3]) .- 1
end

@testset "the shortest keys" begin
    k = reshape(Float64[3 0; 1 1; 0 0; 0 0; 2 1; 0 4]', 2, 3, 2, 1)  # 9 + 0, 2 + 5, 0 + 16
    cache = append!(KVCache{Float64}(1, 2, 2), k, k)
    @test positions_of(evict!(cache, KeyNorm(budget = 2)))[:] == [0, 1]
    # from the first channel to the last: 2^54 + 1 is 2^54, so that the ones after it are lost
    big = 2.0^27
    for (a, b, kept) in (([big, 1, 1, 1, 1], [1, 1, 1, 1, big], 0), ([1, 1, 1, 1, big], [big, 1, 1, 1, 1], 1))
        k = reshape([a b], 5, 2, 1, 1)
        cache = append!(KVCache{Float64}(1, 1, 5), k, k)
        @test positions_of(evict!(cache, KeyNorm(budget = 1)))[:] == [kept]
    end
    # a square is rounded before it is added: of (1 + 2^-27)² a fused sum would keep 2^-54, which tips it
    small, large = 1.2 * 2.0^-27, 1 + 2.0^-27
    scores = RosettaAttention.key_scores(reshape([small, large], 2, 1, 1, 1))
    @test -scores[] == 1 + 2.0^-26 != fma(large, large, small * small)
end

@testset "evicted = contiguous with the slots hidden, round $round" for round in 1:16
    rng = MersenneTwister(80 + round)
    options = (rope = iseven(round) ? Rope(base = 20) : nothing, track = true)
    new() = round % 3 == 0 ? QuantisedCache{Float64}(2, 2, 4, 3; format = "int8", options...) :
        KVCache{Float64}(2, 2, 4, 3; options...)
    cache, whole = new(), new()
    k, v = heads_of(rng, Float64, 2, 2, 4, 3, 7)
    q, later, causal = randn(rng, 4, 3, 4, 2), randn(rng, 4, 2, 4, 2), Mask(causal = true)
    counts = Int64[rand(rng, 3:7), rand(rng, 0:7)]
    for one in (cache, whole)
        append!(one, k, v; lengths = counts)
        attend(one, q; mask = causal)
    end
    budget, sinks, recent = rand(rng, 2:6), rand(rng, 0:1), rand(rng, 0:1)
    ends = (budget = budget, sinks = sinks, recent = recent)
    snapkv = SnapKV(; ends..., q = q, pool = 3)
    policies = (WindowPolicy(budget, sinks), HeavyHitters(; ends...), snapkv, KeyNorm(; ends...))
    evict!(cache, policies[mod1(round, 4)])
    @test lengths(cache) == min.(counts, budget)
    kept = [j in positions_of(cache)[:, b] for j in 0:length(whole)-1, i in 1:1, h in 1:1, b in 1:2]
    hidden = attend(whole, later; mask = Mask(keep = kept, causal = true))
    @test same(attend(cache, later; mask = causal), hidden)
end

@testset "a policy that is none changes nothing: $(typeof(cache))" for cache in (
    KVCache(2, 2, 4, 3),
    QuantisedCache(2, 2, 4, 3; format = "int8"),
    KiviCache(2, 2, 4, 3; format = "int8", key_groups = 2),
    PerHeadCache(2, 2, 4, 3),
)
    rng = MersenneTwister(81)
    append!(cache, heads_of(rng, Float32, 2, 2, 4, 3, 5)...; lengths = Int64[5, 3])
    q, before = randn(rng, Float32, 4, 2, 4, 2), read(cache)
    function fails(policy)
        code = code_of(() -> evict!(cache, policy))
        @test isequal(read(cache), before)
        return code
    end
    for n in (-1, 0.5, NaN, "2", true, nothing)
        @test fails(WindowPolicy(budget = n)) == fails(KeyNorm(budget = 4, sinks = n)) == :invalid_config
        @test fails(KeyNorm(budget = 4, recent = n)) == :invalid_config
    end
    @test fails(KeyNorm(budget = 2, sinks = 2, recent = 1)) == :invalid_config
    @test fails(HeavyHitters(budget = 2)) == :invalid_config
    @test fails(KeyNorm(budget = 2^62, sinks = 2^62, recent = 2^62)) == :invalid_config
    for pool in (0, 2, -1, 1.5, "3")
        @test fails(SnapKV(budget = 2, q = q, pool = pool)) == :invalid_config
    end
    @test fails(SnapKV(budget = 2, q = q, scale = Inf)) == :invalid_config
    @test fails(SnapKV(budget = 2, q = Float64.(q))) == fails(SnapKV(budget = 2, q = 5)) == :dtype_mismatch
    for dims in ((4, 0, 4, 2), (4, 1, 4, 1), (4, 1, 3, 2), (3, 1, 4, 2), (4, 4, 2))
        @test fails(SnapKV(budget = 2, q = zeros(Float32, dims))) == :shape_mismatch
    end
    by_head = cache isa PerHeadCache
    @test fails(WindowPolicy(budget = [1, 2, 3])) == (by_head ? :shape_mismatch : :invalid_config)
    @test fails(WindowPolicy(budget = by_head ? [1, -2] : [1, 2])) == :invalid_config
    evict!(cache, KeyNorm(budget = 2, sinks = 1, recent = 1))
    @test all(==(2), lengths(cache))
end

@testset "evict and shift" begin
    cache = append_columns!(KVCache(2, 1, 1), [1 10; 2 20; 4 40])
    truncate!(cache, [3, 2])
    evict!(cache, [1, 7])
    @test read(cache).positions == [0 0; 2 -1] && cache.rows.next == [3, 2]
    append_columns!(cache, [8 80])
    @test read(cache).positions == [0 0; 2 2; 3 -1]
    ask(; options...) = attend(cache, zeros(Float32, 1, 1, 1, 2); options...)[:]
    @test near(ask(mask = Mask(causal = true, window = (1, 0))), Float32[6, 80])
    shift!(cache, 2, 2)
    @test read(cache).positions == [0 0; 4 4; 5 -1] && cache.rows.next == [6, 5]
    @test code_of(() -> shift!(cache, -4, 2)) == code_of(() -> shift!(cache, -5, 0)) == :invalid_config
    shift!(cache, -3, 2)
    @test read(cache).positions == [0 0; 1 1; 2 -1] && cache.rows.next == [3, 2]
    truncate!(cache, [1, 0])
    @test cache.rows.next == [1, 0]
end

@testset "a shifted key is one that was appended there $(typeof(new()))" for new in (
    () -> KVCache{Float64}(1, 1, 4; rope = Rope()),
    () -> KVCache{Float64}(1, 1, 4; rope = Rope(scaling = YarnScaling(factor = 4, original_length = 8))),
    () -> QuantisedCache{Float64}(1, 1, 4; format = "int8", rope = Rope()),
)
    rng = MersenneTwister(63)
    k, v = heads_of(rng, Float64, 1, 1, 4, 4, 6)
    moved, direct = append!(new(), k, v), append!(new(), k[:, [1, 2, 5, 6], :, :], v[:, [1, 2, 5, 6], :, :])
    shift!(evict!(moved, [2, 3]), -2, 4)
    if moved isa KVCache
        @test near(read(moved).k, read(direct).k)
    else
        # A rounding is off by half a step, which is at most sqrt(2)·max/127 in a turned pair. One key was
        # rounded, turned with its error and rounded again, the other rounded once.
        limit = (sqrt(2) + 1 + 1) / 2 * sqrt(2) * maximum(abs, k) / 127
        @test all(abs.(read(moved).k .- read(direct).k) .<= limit)
    end
    @test same(read(moved).v, read(direct).v)
    @test read(moved).positions == read(direct).positions && moved.rows.next == [4]
end
