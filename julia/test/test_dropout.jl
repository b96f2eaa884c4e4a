using RosettaAttention: keep_factors, philox_block

@testset "Philox4x32-10" begin
    # The known answers of the paper's own library: counter, key, result.
    zero4, ones4 = ntuple(_ -> 0x00000000, 4), ntuple(_ -> 0xffffffff, 4)
    @test philox_block(zero4, zero4[1:2]) == (0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8)
    @test philox_block(ones4, ones4[1:2]) == (0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd)
    of_pi = philox_block((0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344), (0xa4093822, 0x299f31d0))
    @test of_pi == (0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1)

    words = philox_words(7, 0, 23)
    @test eltype(words) == UInt32 && philox_words(0, 0, 4) == collect(philox_block(zero4, zero4[1:2]))
    @test all(philox_words(7, first, count) == words[first+1:first+count] for first in 0:9, count in 0:13)
    @test philox_words(2^53 - 1, 2^60 + 1, 2) == philox_words(2^53 - 1, 2^60, 3)[2:3]
    for bad in ((-1, 0, 1), (2^53, 0, 1), (0, -1, 1), (0, 0, -1), (0.5, 0, 1), (true, 0, 1))
        @test code_of(() -> philox_words(bad...)) == :invalid_config
    end
end

@testset "dropout $T" for T in FLOATS
    x = randn(MersenneTwister(21), T, 5, 4, 3)
    steps = dropout_steps(x, Dropout(0.25, 7))
    words = philox_words(7, 0, 60)
    @test vec(steps.keep) == (words .>= ceil(0.25 * 2^32))
    @test same(steps.output, ifelse.(steps.keep, x .* T(1 / 0.75), zero(T)))
    @test same(dropout(x, Dropout(0, 7)), x) && all(iszero, dropout(fill(T(NaN), 9), Dropout(1, 7)))
    @test isequal(dropout(fill(T(NaN), 60), Dropout(0.25, 7)) .=== T(0), .!vec(steps.keep))
    @test same(vec(dropout(x[:, :, 2:3], Dropout(0.25, 7); offset = 20)), vec(steps.output)[21:60])
    @test abs(count(dropout_steps(zeros(T, 10^5), Dropout(0.3, 1)).keep) / 10^5 - 0.7) < 0.01
    @test same(dropout(fill(T(2)), Dropout(0, 0)), fill(T(2)))
    @test size(dropout(zeros(T, 0, 2), Dropout(0.5, 1))) == (0, 2)
    @test keep_factors(T, Dropout(0.25, 7), 3, 5) == ifelse.(vec(steps.keep)[4:8], T(1 / 0.75), zero(T))
end

@testset "dropout of the weights" begin
    rng = MersenneTwister(22)
    q, k, v = randn(rng, 4, 3, 4, 2), randn(rng, 4, 5, 2, 2), randn(rng, 3, 5, 2, 2)
    options = Dropout(0.4, 9)
    steps, plain = sdpa_steps(q, k, v; dropout = options), sdpa_steps(q, k, v)
    @test same(steps.weights, plain.weights) && same(steps.lse, plain.lse)
    dropped = dropout(plain.weights, options)
    for b in 1:2, h in 1:4
        @test near(steps.output[:, :, h, b], v[:, :, fld1(h, 2), b] * dropped[:, :, h, b])
    end
    @test all(iszero, sdpa(q, k, v; dropout = Dropout(1, 0)))
    @test same(sdpa(q, k, v; dropout = Dropout(0, 0)), plain.output)
    layer = MultiHeadAttention((randn(rng, 4, 4) for _ in 1:4)...; num_heads = 2)
    x = randn(rng, 4, 3, 2)
    @test layer(x; dropout = Dropout(0, 1)) == layer(x) != layer(x; dropout = options)
    @test all(iszero, layer(x; dropout = Dropout(1, 1)))
end

@testset "codes of dropout" begin
    shares = (-0.1, 1.1, NaN, "x", nothing, true)
    seeds = (-1, 2^53, 0.5, nothing)
    for fields in [[(p, 0) for p in shares]; [(0.5, seed) for seed in seeds]]
        @test code_of(() -> dropout(zeros(2), Dropout(fields...))) == :invalid_config
        @test code_of(() -> sdpa(Q, K, V; dropout = Dropout(fields...))) == :invalid_config
    end
    @test code_of(() -> dropout(zeros(2), 0.5)) == :invalid_config
    @test code_of(() -> sdpa(Q, K, V; dropout = 0.5)) == :invalid_config
    @test code_of(() -> dropout(zeros(2), Dropout(0.5, 0); offset = -1)) == :invalid_config
    @test code_of(() -> dropout([1], Dropout(0.5, 0))) == :dtype_mismatch
end
