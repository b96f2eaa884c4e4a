# Keys that are held as they came, and turned when they are attended to. The helpers are those of
# test_caches.jl.

using RosettaAttention: narrow, read_file, widened

const SCALED = Rope(base = 50, scaling = YarnScaling(factor = 4, original_length = 16))
const LATE = (rope = SCALED, rope_at = "attend")

# Every kind that turns; those that round what they hold come last.
turning_caches(T; options...) = [
    KVCache{T}(2, 2, 4, 3; options...),
    PerHeadCache{T}(2, 2, 4, 3; options...),
    RotatingCache{T}(2, 2, 4, 3; window = 4, keep = 1, options...),
    PagedCache(PagePool{T}(30, 3, 2, 4, 3), 2; options...),
    QuantisedCache{T}(2, 2, 4, 3; format = "int8", options...),
    KiviCache{T}(2, 2, 4, 3; format = "int8", key_groups = 2, options...),
]

@testset "turned at an attend or at an append: the same numbers, kind $n" for n in 1:4
    late, once, plain = (turning_caches(Float32; how...)[n] for how in (LATE, (rope = SCALED,), NamedTuple()))
    rng, causal, path = MersenneTwister(110), Mask(causal = true), tempname()
    k, v = heads_of(rng, Float32, 2, 2, 4, 3, 7)
    q = randn(rng, Float32, 4, 7, 4, 2)
    for part in (1:3, 4:7)
        foreach((late, once, plain)) do cache
            append!(cache, k[:, part, :, :], v[:, part, :, :]; lengths = Int64[length(part), 1])
        end
        # Float32 holds what it turns
        @test same((attend(cache, q[:, part, :, :]; mask = causal) for cache in (late, once))...)
    end
    @test isequal(read(late), read(plain)) && read(late).k != read(once).k
    save(late, path)
    @test read_file(path)[2]["rope"] == "false"
    @test code_of(() -> load!(once, path)) == :invalid_config
    asked = attend(late, q)
    @test same(attend(fork(late), q), asked)
    reset!(late)  # the pages of a pool
    @test same(attend(load!(late, path), q), asked) && lengths(load!(reset!(plain), path)) == lengths(late)
end

@testset "what is rounded is the key as it came" for n in 5:6
    rng, causal = MersenneTwister(111), Mask(causal = true)
    late, unturned = turning_caches(Float64; LATE...)[n], turning_caches(Float64)[n]
    k, v = heads_of(rng, Float64, 2, 2, 4, 3, 5)
    foreach(cache -> append!(cache, k, v; lengths = Int64[5, 3]), (late, unturned))
    held, q = read(late), randn(rng, 4, 5, 4, 2)
    @test isequal(held, read(unturned))
    plain = append!(KVCache{Float64}(2, 2, 4, 3; LATE...), held.k, held.v; lengths = held.lengths)
    @test same(attend(late, q; mask = causal), attend(plain, q; mask = causal))
end

@testset "a turn at an attend is not rounded to a half type: $T" for T in (Float16, BFloat16)
    rng = MersenneTwister(112)
    k, v, q = (narrow(randn(rng, dims...), T) for dims in ((4, 5, 2, 2), (3, 5, 2, 2), (4, 5, 4, 2)))
    late = append!(KVCache{T}(2, 2, 4, 3; LATE...), k, v)
    wide = append!(KVCache{Float32}(2, 2, 4, 3; LATE...), widened(k), widened(v))
    @test same(attend(late, q), narrow(attend(wide, widened(q)), T))
end

@testset "a shift moves positions alone" begin
    rng, causal = MersenneTwister(113), Mask(causal = true)
    k, v = heads_of(rng, Float64, 2, 2, 4, 3, 5)
    q = randn(rng, 4, 5, 4, 2)
    lates, onces = turning_caches(Float64; LATE...), turning_caches(Float64; rope = SCALED)
    for n in (1, 2, 5, 6)
        late, once = append!(lates[n], k, v), append!(onces[n], k, v)
        before = read(late)
        shift!(late, 7, 2)
        @test same(read(late).k, before.k) && read(late).positions[1:5] == [0, 1, 9, 10, 11]
        shift!(once, 7, 2)
        # a key that was turned in two steps has 3 roundings more a channel, of the 64 that `near` allows
        n <= 2 && @test near(attend(late, q; mask = causal), attend(once, q; mask = causal))
    end
end

@testset "any other word, and one without a rope" begin
    for word in ("late", "Attend", 5, true)
        @test code_of(() -> turning_caches(Float32; rope = Rope(), rope_at = word)) == :invalid_config
    end
    for n in 1:6, word in ("append", "attend")
        of_kind(; options...) = turning_caches(Float32; options...)[n]
        @test code_of(() -> of_kind(rope_at = word)) == :invalid_config
        @test code_of(() -> of_kind(rope = Rope(), rope_at = word)) == :none
    end
end
