# Appends one column of values a position and asks for their mean.
function decode_mean!(cache, value; T = eltype(cache), options...)
    append!(cache, ones(T, 1, 1, 1, 1), fill(T(value), 1, 1, 1, 1))
    return attend(cache, zeros(T, 1, 1, 1, 1); options...)[]
end

append_values!(cache::KVCache{T}, values) where {T} =
    append!(cache, ones(T, 1, length(values), 1, 1), row_major(T, (1, 1, length(values), 1), values))

@testset "kv_cache by hand $T" for T in FLOATS
    @testset "a chunk after a chunk (ChunkedPrefill)" begin
        cache = KVCache{T}(1, 1, 1)
        append_values!(cache, [1, 2, 4])
        @test near(attend(cache, zeros(T, 1, 3, 1, 1); mask = Mask(causal = true))[:], T[1, 1.5, 7 / 3])
        append_values!(cache, [8, 16])
        @test near(attend(cache, zeros(T, 1, 2, 1, 1); mask = Mask(causal = true))[:], T[3.75, 6.2])
    end

    @testset "a window while decoding (WindowBoundary)" begin
        cache = KVCache{T}(1, 1, 1; capacity = 4)
        mask = Mask(causal = true, window = (2, 0))
        @test near([decode_mean!(cache, n; mask = mask) for n in (1, 2, 4, 8)], T[1, 1.5, 7 / 3, 14 / 3])
    end

    @testset "roll back (Rollback), reset (StaleReset)" begin
        cache = KVCache{T}(1, 1, 1)
        append_values!(cache, [1, 2, 4, 100, 200])
        truncate!(cache, [4])
        @test decode_mean!(cache, 8) === T(23)
        reset!(cache)
        @test length(cache) == 0
        @test decode_mean!(cache, 5) === T(5)
    end

    @testset "an empty cache" begin
        cache = KVCache{T}(2, 1, 3, 2)
        steps = attend_steps(cache, ones(T, 3, 2, 4, 2); mask = Mask(causal = true))
        @test same(steps.output, zeros(T, 2, 2, 4, 2)) && same(steps.lse, fill(T(-Inf), 2, 4, 2))
        append!(cache, zeros(T, 3, 0, 1, 2), zeros(T, 2, 0, 1, 2))
        @test lengths(cache) == [0, 0] && size(keys(cache)) == (3, 0, 1, 2)
        nobody = KVCache{T}(0, 1, 1)
        append!(nobody, zeros(T, 1, 2, 1, 0), zeros(T, 1, 2, 1, 0))
        @test size(attend(nobody, zeros(T, 1, 1, 1, 0))) == (1, 1, 1, 0) && length(nobody) == 0
    end

    @testset "more queries than positions (EmptyKeys)" begin
        cache = KVCache{T}(1, 1, 1)
        append_values!(cache, [1, 3])
        @test near(attend(cache, zeros(T, 1, 4, 1, 1); mask = Mask(causal = true))[:], T[0, 0, 1, 2])
    end

    @testset "read" begin
        cache = KVCache{T}(2, 1, 1; capacity = 5)
        k = row_major(T, (2, 1, 3, 1), [1, 2, NaN, 4, 5, 6])
        append!(cache, k, -k)  # the NaN too, which is junk as soon as the row is cut
        truncate!(cache, [2, 3])
        held_k, held_v, held = read(cache)
        @test held == [2, 3]
        @test held_k == row_major(T, (2, 1, 3, 1), [1, 2, 0, 4, 5, 6])
        @test held_v == row_major(T, (2, 1, 3, 1), [-1, -2, 0, -4, -5, -6])
        k .= 0  # the cache holds copies, and gives copies
        held_k .= 0
        @test read(cache)[1] == row_major(T, (2, 1, 3, 1), [1, 2, 0, 4, 5, 6])
    end
end

@testset "kv_cache properties $T" for T in FLOATS
    rng = MersenneTwister(7)
    for round in 1:25
        B, Hkv, G = rand(rng, 1:3), rand(rng, 1:2), rand(rng, 1:3)
        D, Dv, total = rand(rng, 1:5), rand(rng, 1:5), 12
        q = randn(rng, T, D, total, Hkv * G, B)
        k, v = randn(rng, T, D, total, Hkv, B), randn(rng, T, Dv, total, Hkv, B)
        mask = rand(rng, [Mask(causal = true), Mask(causal = true, window = (3, 0)), Mask(window = (2, 0))])
        whole = sdpa_steps(q, k, v; mask = mask, softcap = 5)

        # any split into chunks gives what one call gives, bit for bit, twice on the same cache
        cache = KVCache{T}(B, Hkv, D, Dv; capacity = rand(rng, Any[nothing, total, total + 3]))
        for _ in 1:2
            done = 0
            while done < total
                chunk = done+1:min(total, done + rand(rng, 1:5))
                append!(cache, k[:, chunk, :, :], v[:, chunk, :, :])
                steps = attend_steps(cache, q[:, chunk, :, :]; mask = mask, softcap = 5)
                @test same(steps.output, whole.output[:, chunk, :, :])
                @test same(steps.lse, whole.lse[chunk, :, :])
                done = last(chunk)
            end
            @test same(read(cache)[1], k) && same(read(cache)[2], v)
            reset!(cache)
        end

        # rows of their own lengths: each is what it would be alone, and junk is never visible
        counts = Int64[rand(rng, 0:total) for _ in 1:B]
        junk_k, junk_v = copy(k), copy(v)
        for b in 1:B
            junk_k[:, counts[b]+1:end, :, b] .= NaN
            junk_v[:, counts[b]+1:end, :, b] .= Inf
        end
        ragged = KVCache{T}(B, Hkv, D, Dv)
        append!(ragged, junk_k, junk_v; lengths = counts)
        append!(ragged, k[:, 1:2, :, :], v[:, 1:2, :, :])
        last_two = attend(ragged, q[:, 1:2, :, :]; mask = mask)
        for b in 1:B
            alone = KVCache{T}(1, Hkv, D, Dv)
            append!(alone, k[:, 1:counts[b], :, b:b], v[:, 1:counts[b], :, b:b])
            append!(alone, k[:, 1:2, :, b:b], v[:, 1:2, :, b:b])
            @test same(attend(alone, q[:, 1:2, :, b:b]; mask = mask), last_two[:, :, :, b:b])
        end
        @test lengths(ragged) == counts .+ 2

        # truncate, then go on: as if the rest had never been there
        kept = Int64[rand(rng, 0:n) for n in lengths(ragged)]
        before = read(ragged)[1]
        truncate!(ragged, kept)
        held = read(ragged)[1]
        @test all(same(held[:, 1:kept[b], :, b], before[:, 1:kept[b], :, b]) for b in 1:B)
    end
end

@testset "kv_cache: a failed call changes nothing" begin
    cache = KVCache{Float64}(2, 1, 2; capacity = 4)
    k = randn(2, 3, 1, 2)
    append!(cache, k, k; lengths = Int64[3, 1])
    before = deepcopy(read(cache))
    state = (cache.k, cache.v, copy(cache.k), copy(cache.v))
    bad_calls = [
        () -> append!(cache, k, k),
        () -> append!(cache, k, randn(2, 2, 1, 2)),
        () -> append!(cache, k, k; lengths = Int64[1, 4]),
        () -> append!(cache, Float32.(k), Float32.(k)),
        () -> truncate!(cache, [1, 2]),
        () -> truncate!(cache, [1]),
        () -> attend(cache, randn(3, 1, 1, 2)),
    ]
    for call in bad_calls
        @test code_of(call) != :none
        @test isequal(read(cache), before)
        @test cache.k === state[1] && cache.v === state[2] && cache.k == state[3] && cache.v == state[4]
    end
    append!(cache, k, k; lengths = Int64[1, 3])
    @test lengths(cache) == [4, 4]
end

@testset "kv_cache growth and types" begin
    cache = KVCache(1, 1, 1)
    @test eltype(cache) == Float32 && eltype(KVCache{Float64}(1, 1, 1)) == Float64
    rooms = Int[]
    for n in 1:33
        append_values!(cache, [n])
        push!(rooms, size(cache.k, 2))
    end
    @test length(unique(rooms)) <= 7 && length(cache) == 33
    held = lengths(cache)
    reset!(cache)
    @test held == [33]  # a result given out is never changed afterwards
    list = Int64[0]
    truncate!(cache, list)
    list[1] = 9
    @test lengths(cache) == [0]
    append!(cache, ones(Float32, 1, 2, 1, 1), ones(Float32, 1, 2, 1, 1))
    append!(cache, keys(cache), values(cache))  # its own views
    @test length(cache) == 4
    @test (@inferred attend(cache, zeros(Float32, 1, 1, 1, 1))) isa Array{Float32,4}
    @test occursin("4", sprint(show, cache))
end

@testset "sizes that no machine holds are refused" begin
    for sizes in ((2^62, 2, 2), (2, 2^62, 2), (2, 2, 2^62), (2^62, 1, 1))
        @test code_of(() -> KVCache{Float32}(sizes...; capacity = 4)) == :invalid_config
        @test code_of(() -> KVCache{Float32}(sizes...)) == :invalid_config
    end
end
