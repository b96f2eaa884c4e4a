# What holds for all kinds of caches, each by a cache that is known already.

heads_of(rng, T, B, Hkv, D, Dv, len) = randn(rng, T, D, len, Hkv, B), randn(rng, T, Dv, len, Hkv, B)
held(cache) = (read(cache), deepcopy(cache.rows.next))

# New caches of all kinds that grow by keys and values; B = 2, Hkv = 2, D = 4, Dv = 3.
growing_caches(T; rope = nothing) = [
    KVCache{T}(2, 2, 4, 3; rope = rope),
    KVCache{T}(2, 2, 4, 3; rope = rope, rope_at = rope === nothing ? nothing : "attend", track = true),
    RotatingCache{T}(2, 2, 4, 3; window = 3, keep = 1, rope = rope),
    PagedCache(PagePool{T}(30, 3, 2, 4, 3), 2; rope = rope),
    QuantisedCache{T}(2, 2, 4, 3; format = "int8", group = 2, rope = rope),
    QuantisedCache{T}(2, 2, 4, 3; format = "int4", zero_point = true, rope = rope),
]

mean_of(cache) = attend(cache, zeros(Float32, 1, 1, 1, cache.batch))[1, 1, 1, :]
function append_columns!(cache, values; options...)
    v = reshape(Float32.(values), 1, size(values, 1), 1, :)
    return append!(cache, one.(v), v; options...)
end

@testset "chunks, forks, resets, failures: $(typeof(template))" for (T, rope) in
    ((Float32, nothing), (Float64, Rope(scaling = LinearScaling(2)))),
    template in growing_caches(T; rope = rope)

    rng = MersenneTwister(60)
    k, v = heads_of(rng, T, 2, 2, 4, 3, 12)
    q = randn(rng, T, 4, 12, 4, 2)
    lengths_all(n) = Int64[n, n]
    new() = template isa PagedCache ? PagedCache(PagePool{T}(30, 3, 2, 4, 3), 2; rope = rope) : fork(template)
    mask = Mask(causal = true, window = (4, 0))

    whole = new()
    all_at_once = append_attend!(whole, q, k, v; mask = mask)
    for sizes in (fill(1, 12), [5, 0, 6, 1], [2, 10])
        cache, done = new(), 0
        for _ in 1:2  # twice on the same cache: a reset forgets all
            for n in sizes
                chunk = done+1:done+n
                append!(cache, k[:, chunk, :, :], v[:, chunk, :, :])
                steps = attend_steps(cache, q[:, chunk, :, :]; mask = mask)
                @test same(steps.output, all_at_once.output[:, chunk, :, :])
                @test same(steps.lse, all_at_once.lse[chunk, :, :])
                done += n
            end
            @test isequal(held(cache)[1], held(whole)[1])
            @test lengths(reset!(cache)) == [0, 0] && length(cache) == 0
            done = 0
        end
    end

    # a fork goes its own way, and so does its origin
    before = held(whole)
    other = fork(whole)
    append!(other, k[:, 1:2, :, :], v[:, 1:2, :, :])
    reorder!(other, [1, 0])
    @test isequal(held(whole), before)
    append!(whole, k[:, 3:3, :, :], v[:, 3:3, :, :])
    append!(reset!(other), k, v)
    @test isequal(held(other), before)
    reset!(other)

    # junk that does not count, on either side, and rows of their own
    counts = Int64[2, 5]
    right, left, single = new(), new(), [new(), new()]
    junk_k, junk_v = fill(T(NaN), 4, 6, 2, 2), fill(T(Inf), 3, 6, 2, 2)
    left_k, left_v = copy(junk_k), copy(junk_v)
    for b in 1:2
        n = counts[b]
        junk_k[:, 1:n, :, b], junk_v[:, 1:n, :, b] = k[:, 1:n, :, b], v[:, 1:n, :, b]
        left_k[:, 7-n:6, :, b], left_v[:, 7-n:6, :, b] = k[:, 1:n, :, b], v[:, 1:n, :, b]
        append!(single[b], k[:, 1:n, :, :], v[:, 1:n, :, :])
    end
    append!(right, junk_k, junk_v; lengths = counts)
    append!(left, left_k, left_v; lengths = counts, padding = "left")
    @test isequal(held(right), held(left)) && lengths(right) == counts
    asked = attend(right, q[:, 1:2, :, :]; mask = mask)
    for b in 1:2
        @test same(asked[:, :, :, b], attend(single[b], q[:, 1:2, :, :]; mask = mask)[:, :, :, b])
    end

    # a call that throws changes nothing
    before = held(right)
    bad = [
        () -> append!(right, k, v[:, 1:2, :, :]),
        () -> append!(right, k, v; lengths = Int64[13, 0]),
        () -> append!(right, k, v; padding = "middle"),
        () -> append!(right, Float16.(k), Float16.(v)),
        () -> append_attend!(right, q[1:3, :, :, :], k, v),
        () -> append_attend!(right, q, k, v; mask = Mask(window = (-1, 0))),
        () -> append_attend!(right, q, k, v; bias = zeros(T, 3, 1)),
        () -> attend(right, q; mask = Mask(kv_lengths = counts)),
        () -> truncate!(right, [9, 0]),
        () -> truncate!(right, [1]),
        () -> reorder!(right, [0]),
        () -> reorder!(right, [0, 2]),
        () -> evict!(right, 5),
        () -> shift!(right, -9, 1),
        () -> shift!(right, 0.5, 1),
    ]
    for call in bad
        @test code_of(call) != :none && isequal(held(right), before)
    end

    # truncate, and go on: as if the rest had never been there
    truncate!(right, [2, 4])
    append!(right, k[:, 5:5, :, :], v[:, 5:5, :, :]; lengths = Int64[0, 1])
    @test isequal(held(right), before)
    second = read(right).v[:, :, :, 2]
    reorder!(right, [1, 1])
    @test all(b -> same(read(right).v[:, :, :, b], second), 1:2)
    # of its 5 positions a window of 3 beside the first one has forgotten another when the last came
    @test stats(right).positions == (right isa RotatingCache ? [4, 4] : [5, 5])
end

@testset "the same numbers as a contiguous cache $T" for T in FLOATS
    rng = MersenneTwister(61)
    for round in 1:8
        W, keep = rand(rng, 1:5), rand(rng, 0:2)
        rope = rand(rng, [nothing, Rope(interleaved = true)])
        format = rand(rng, ["int8", "int4", "fp8_e4m3", "bf16"])
        caches = [
            RotatingCache{T}(2, 2, 4, 3; window = W, keep = keep, rope = rope),
            PagedCache(PagePool{T}(20, rand(rng, 1:4), 2, 4, 3), 2; rope = rope),
            QuantisedCache{T}(2, 2, 4, 3; format = format, rope = rope),
        ]
        full, restored_ones = KVCache{T}(2, 2, 4, 3; rope = rope), KVCache{T}(2, 2, 4, 3)
        for _ in 1:4
            len = rand(rng, 0:6)
            k, v = heads_of(rng, T, 2, 2, 4, 3, len)
            counts = Int64[rand(rng, 0:len) for _ in 1:2]
            # the newest query sees all that it may; an older one only what is left of it
            q, softcap = randn(rng, T, 4, 1, 2, 2), rand(rng, Any[nothing, 3])
            foreach(cache -> append!(cache, k, v; lengths = counts), [caches; full])
            rotating, paged, quantised = caches
            at = reshape(lengths(full) .- 1, 1, 2)  # (Tq, B)
            sees(p, j) = j <= p && (p - j < W || j < keep)
            near = [sees(at[1, b], j) for j in 0:length(full)-1, i in 1:1, h in 1:1, b in 1:2]
            whole = attend(full, q; mask = Mask(keep = near), softcap = softcap)
            @test same(attend(rotating, q; softcap = softcap), whole)
            @test same(attend(paged, q; softcap = softcap), attend(full, q; softcap = softcap))
            @test isequal(read(paged), read(full))
            # the keys of a quantised cache are rotated already: its queries are turned by hand
            plain = reset!(restored_ones)
            stored = read(quantised)
            append!(plain, stored.k, stored.v; lengths = stored.lengths)
            turned = rope === nothing ? q : RosettaAttention.rope(q, rope; positions = at)
            @test same(attend(quantised, q; softcap = softcap), attend(plain, turned; softcap = softcap))
        end
    end
end

@testset "latent and cross $T" for T in FLOATS
    rng = MersenneTwister(62)
    latent, rope_key, q = randn(rng, T, 5, 7, 2), randn(rng, T, 2, 7, 2), randn(rng, T, 7, 3, 4, 2)
    cache, plain = LatentCache{T}(2, 5, 2), KVCache{T}(2, 1, 7, 5)
    v = reshape(latent, 5, 7, 1, 2)
    k = cat(v, reshape(rope_key, 2, 7, 1, 2); dims = 1)
    append!(cache, latent[:, 1:3, :], rope_key[:, 1:3, :])
    later, causal = (latent[:, 4:7, :], rope_key[:, 4:7, :]), Mask(causal = true)
    steps = append_attend!(cache, q, later...; lengths = Int64[4, 2], mask = causal)
    append!(plain, k, v; lengths = Int64[7, 5])
    @test same(steps.output, attend(plain, q; mask = causal))
    @test same(read(cache).latent[:, :, 1], latent[:, :, 1]) && size(read(cache).rope_key) == (2, 7, 2)
    @test stats(cache).bytes == 12 * 7 * sizeof(T) && lengths(truncate!(fork(cache), [1, 0])) == [1, 0]
    @test code_of(() -> append!(cache, latent, rope_key[:, 1:2, :])) == :shape_mismatch
    @test code_of(() -> attend(cache, q[1:5, :, :, :])) == :shape_mismatch
    small = LatentCache{T}(2, 5, 2; capacity = 6)
    @test code_of(() -> append!(small, latent, rope_key)) == :capacity_exceeded
    @test code_of(() -> LatentCache{T}(2, 0, 2)) == :invalid_config
    @test code_of(() -> evict!(cache, [1])) == :unsupported
    bare = append!(LatentCache{T}(2, 5, 0), latent, rope_key[1:0, :, :])
    @test size(attend(bare, q[1:5, :, :, :])) == (5, 3, 4, 2)

    cross, full = CrossCache{T}(2, 1, 7, 5), KVCache{T}(2, 1, 7, 5)
    append!(cross, k, v; lengths = Int64[7, 4])
    append!(full, k, v; lengths = Int64[7, 4])
    @test same(attend(cross, q), attend(full, q)) && isequal(read(cross), read(full))
    before = held(cross)
    bad = [
        () -> append!(cross, k, v),
        () -> truncate!(cross, [1, 1]),
        () -> attend(cross, q; mask = causal),
        () -> attend(cross, q; mask = Mask(window = (1, 1))),
    ]
    for call in bad
        @test code_of(call) == :invalid_config && isequal(held(cross), before)
    end
    @test same(attend(reorder!(cross, [1, 0]), q[:, :, :, [2, 1]]), attend(full, q)[:, :, :, [2, 1]])
    @test length(append!(reset!(cross), k[:, 1:2, :, :], v[:, 1:2, :, :])) == 2
end

@testset "by hand" begin
    @testset "a window while decoding (WindowBoundary)" begin
        cache = RotatingCache(1, 1, 1; window = 3)
        means = map([1, 2, 4, 8]) do value
            append_columns!(cache, [value][:, :])
            mean_of(cache)[]
        end
        @test near(means, Float32[1, 1.5, 7/3, 14/3])
        @test lengths(cache) == [4] && stats(cache).positions == [3]
        append_columns!(cache, [16, 32, 64, 128, 256][:, :])
        # a chunk longer than the window
        @test stats(cache).positions == [7] && read(cache).positions[:] == [7, 8]
    end

    @testset "roll back (Rollback)" begin
        cache = RotatingCache(1, 1, 1; window = 5)
        append_columns!(cache, [1, 2, 4, 100, 200][:, :])
        truncate!(cache, [4])
        append_columns!(cache, [8][:, :])
        @test mean_of(cache) == [23]
        append_columns!(cache, [1, 1, 1][:, :])
        @test code_of(() -> truncate!(cache, [5])) == :none
        append_columns!(cache, [1][:, :])
        append_columns!(cache, [1][:, :])
        @test code_of(() -> truncate!(cache, [3])) == :invalid_config  # what it would see is gone
    end

    @testset "rotated once, each at its position (RopePosition)" begin
        rotating = RotatingCache{Float64}(1, 1, 2, 1; window = 9, rope = Rope())
        for cache in (KVCache{Float64}(1, 1, 2, 1; rope = Rope()), rotating)
            for value in (1, 2, 4)
                append!(cache, reshape([1.0, 0], 2, 1, 1, 1), fill(Float64(value), 1, 1, 1, 1))
            end
            @test abs(attend(cache, reshape([1.0, 0], 2, 1, 1, 1); scale = 1)[] - 2.937694) < 1e-6
        end
    end

    @testset "forks of a half-full page" begin
        pool = PagePool(4, 4, 1, 1)
        a = append_columns!(PagedCache(pool, 1), [1, 2][:, :])
        b = fork(a)
        @test stats(a).pages == [1, 1, 3]
        append_columns!(a, [10][:, :])
        append_columns!(b, [20][:, :])
        @test near(mean_of(a), Float32[13/3]) && near(mean_of(b), Float32[23/3])
        @test stats(a).pages == [2, 0, 2]
        reset!(a)
        @test near(mean_of(b), Float32[23/3]) && stats(b).pages == [1, 0, 3]
        append_columns!(reset!(b), [7, 7, 7, 7][:, :])
        append_columns!(reset!(b), [3][:, :])
        @test read(b).v[:] == [3] && mean_of(b) == [3]
    end

    @testset "a page is taken when one is due" begin
        pool = PagePool(2, 4, 1, 1)
        cache = PagedCache(pool, 2)
        append_columns!(cache, [1 9; 2 9]; lengths = Int64[2, 0])
        @test stats(cache).pages == [1, 0, 1]
        @test all(iszero, pool.v[:, :, :, 2])  # nobody wrote to the other one
        @test code_of(() -> append_columns!(cache, ones(5, 2))) == :capacity_exceeded
        counted = stats(cache)
        @test counted.positions == [2, 0] && counted.pages == [1, 0, 1] && counted.bytes == 4 * 8
        other = fork(cache)
        append_columns!(cache, [5 0][1:1, :]; lengths = Int64[1, 0])
        more() = append_columns!(other, ones(3, 2); lengths = Int64[3, 0])
        @test code_of(more) == :capacity_exceeded
        append_columns!(other, [6 0][1:1, :]; lengths = Int64[1, 0])  # now its alone
        @test mean_of(other)[1] == 3 && near(mean_of(cache)[1:1], Float32[8/3])
    end

    @testset "prefixes" begin
        pool = PagePool(8, 2, 1, 1)
        cache = PagedCache(pool, 2)
        tokens = Int64[5 5; 6 6; 7 8]
        append_columns!(cache, [1 1; 2 2; 3 4]; tokens = tokens)
        @test stats(cache).pages == [3, 1, 5] && read(cache).v[:] == [1, 2, 3, 1, 2, 4]
        later = append_columns!(PagedCache(pool, 1), [1, 2, 3, 4][:, :]; tokens = Int64[5, 6, 7, 7][:, :])
        @test stats(later).pages == [4, 1, 4]
        append_columns!(cache, [4 4]; tokens = Int64[7 7])
        @test stats(cache).pages == [3, 2, 5] && read(cache).v[:] == [1, 2, 3, 4, 1, 2, 4, 4]
        truncate!(cache, [3, 0])  # the page that is cut is still known to the other row
        append_columns!(cache, [9 9]; lengths = Int64[1, 0], tokens = Int64[9 9])
        @test read(cache).v[:, :, :, 1][:] == [1, 2, 3, 9] && read(later).v[:] == [1, 2, 3, 4]
        different = append_columns!(PagedCache(pool, 1), [1, 5][:, :]; tokens = Int64[5, 6][:, :])
        @test stats(different).pages == [4, 1, 4]  # same tokens, other bits
        foreach(reset!, (cache, later, different))
        @test stats(cache).pages == [0, 0, 8] && isempty(pool.known) && all(iszero, pool.knowers)
        @test code_of(() -> append_columns!(cache, [1 1]; tokens = Int64[1])) == :shape_mismatch
        @test code_of(() -> append_columns!(cache, [1 1]; tokens = [1.0 1.0])) == :dtype_mismatch
        plain, token = KVCache(1, 1, 1), ones(Int64, 1, 1)
        @test code_of(() -> append_columns!(plain, [1][:, :]; tokens = token)) == :invalid_config
    end
end

@testset "decode" begin
    rng = MersenneTwister(64)
    w(rows, columns) = randn(rng, rows, columns)
    x = randn(rng, 6, 7, 2)
    for rope in (nothing, Rope()), in_cache in (false, true)
        layer_rope, cache_rope = in_cache ? (nothing, rope) : (rope, nothing)
        weights = (w(6, 16), w(6, 8), w(6, 6), w(12, 6))
        heads = (num_heads = 4, num_kv_heads = 2, b_o = randn(rng, 6))
        layer = MultiHeadAttention(weights...; heads..., rope = layer_rope)
        expected = MultiHeadAttention(weights...; heads..., rope = rope)(x; mask = Mask(causal = true))
        pool = PagePool{Float64}(10, 2, 2, 4, 3)
        caches = (
            KVCache{Float64}(2, 2, 4, 3; rope = cache_rope),
            PagedCache(pool, 2; rope = cache_rope),
            RotatingCache{Float64}(2, 2, 4, 3; window = 9, rope = cache_rope),
            PerHeadCache{Float64}(2, 2, 4, 3; rope = cache_rope),
        )
        for cache in caches
            outputs = [decode!(layer, x[:, chunk, :], cache) for chunk in (1:4, 5:5, 6:7)]
            @test near(cat(outputs...; dims = 2), expected)
        end
        ragged = KVCache{Float64}(2, 2, 4, 3; rope = cache_rope)
        output = decode!(layer, x, ragged; lengths = Int64[7, 3])
        @test near(output[:, 1:3, :], expected[:, 1:3, :]) && lengths(ragged) == [7, 3]
        left = cat(x[:, :, 1:1], cat(x[:, 4:7, 2:2], x[:, 1:3, 2:2]; dims = 2); dims = 3)
        output = decode!(layer, left, reset!(ragged); lengths = Int64[7, 3], padding = "left")
        @test near(output[:, 5:7, 2], expected[:, 1:3, 2])
        refused(cache) = code_of(() -> decode!(layer, x, cache))
        @test refused(KVCache{Float64}(2, 2, 3, 3)) == :shape_mismatch
        @test refused(KVCache{Float32}(2, 2, 4, 3)) == :dtype_mismatch
        @test refused(KVCache{Float64}(2, 2, 4, 3; capacity = 2)) == :capacity_exceeded
        @test refused(CrossCache{Float64}(2, 2, 4, 3)) == :invalid_config
        twice = rope !== nothing && !in_cache
        @test refused(KVCache{Float64}(2, 2, 4, 3; rope = rope)) == (twice ? :invalid_config : :none)
    end
end

@testset "sizes of any integer type" begin
    for N in (Int32, UInt8, BigInt)
        one, two = N(1), N(2)
        caches = (
            KVCache(one, one, two; capacity = two),
            RotatingCache(one, one, two; window = two, keep = one),
            PagedCache(PagePool(two, two, one, two), one),
            QuantisedCache(one, one, two; format = SubString("int8 ", 1, 4), group = one, capacity = two),
            KiviCache(one, one, two; format = "int8", key_groups = one, capacity = two),
            PerHeadCache(one, one, two; capacity = two),
            CrossCache(one, one, two),
        )
        for cache in caches
            @test length(append!(cache, ones(Float32, 2, 2, 1, 1), ones(Float32, 2, 2, 1, 1))) == 2
        end
        latent = LatentCache(one, two, two; capacity = two)
        @test length(append!(latent, ones(Float32, 2, 2, 1), ones(Float32, 2, 2, 1))) == 2
    end
end

@testset "configs that cannot be" begin
    growing = Rope(scaling = DynamicScaling(factor = 2, original_length = 4))
    bad = [
        () -> RotatingCache(1, 1, 1; window = 0),
        () -> RotatingCache(1, 1, 1; window = 1, keep = -1),
        () -> PagePool(-1, 1, 1, 1),
        () -> PagePool(1, 0, 1, 1),
        () -> PagedCache(PagePool(1, 1, 1, 1), -1),
        () -> QuantisedCache(1, 1, 1; format = "int5"),
        () -> QuantisedCache(1, 1, 1; format = "f16", zero_point = true),
        () -> KVCache(1, 1, 4; rope = Rope(offset = 1)),
        () -> KVCache(1, 1, 4; rope = 5),
        () -> KVCache(1, 1, 4; rope = growing),
    ]
    for call in bad
        @test code_of(call) == :invalid_config
    end
    @test code_of(() -> KVCache(1, 1, 3; rope = Rope())) == :shape_mismatch
    nan = fill(NaN32, 1, 1, 1, 1)
    @test code_of(() -> append!(QuantisedCache(1, 1, 1; format = "int8"), nan, nan)) == :invalid_config
    @test isnan(read(append!(QuantisedCache(1, 1, 1; format = "fp8_e4m3"), nan, nan)).v[])
end
