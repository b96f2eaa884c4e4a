@testset "softmax $T" for T in FLOATS
    @testset "by hand" begin
        weights, lse = softmax_lse(T[0, log(T(2))])
        @test near(weights, T[1 / 3, 2 / 3])
        @test near(lse[], log(T(3)))
        @test near(softmax(T[100, 99]), T[0.7310585786300049, 0.2689414213699951])
        @test near(softmax(T[-1e5, -1e5]), T[0.5, 0.5])  # Overflow
    end

    @testset "hidden slots" begin
        weights, lse = softmax_lse(T[0 -Inf; -Inf -Inf])
        @test same(weights, T[1 0; 0 0])
        @test same(lse, T[0, -Inf])
        @test same(softmax(T[NaN, -Inf, 1]), T[NaN, 0, NaN])
        @test same(softmax(T[Inf, -Inf, 1]), T[NaN, 0, NaN])
        @test all(isnan, softmax_lse(T[NaN 1; Inf 2]')[2])
    end

    @testset "sizes of 0 and 1" begin
        @test same(softmax(zeros(T, 0)), zeros(T, 0))
        @test same(softmax_lse(zeros(T, 0))[2], fill(T(-Inf)))
        @test same(softmax_lse(zeros(T, 0, 3))[2], fill(T(-Inf), 3))
        @test size(softmax(zeros(T, 3, 0))) == (3, 0)
        @test same(softmax(fill(T(7), 1, 2)), ones(T, 1, 2))
    end

    @testset "sink" begin
        weights, lse = softmax_lse(T[0, 0], fill(log(T(2))))
        @test near(weights, T[0.25, 0.25])
        @test near(lse[], log(T(4)))
        weights, lse = softmax_lse(fill(T(-Inf), 2, 1), T[0.3])
        @test same(weights, zeros(T, 2, 1)) && same(lse, T[0.3])
        @test isequal(softmax_lse(ones(T, 2, 3), fill(T(-Inf), 1)), softmax_lse(ones(T, 2, 3)))
    end

    @testset "properties" begin
        rng = MersenneTwister(1)
        for _ in 1:30
            x = randn(rng, T, rand(rng, 1:9), rand(rng, 1:4), rand(rng, 1:3)) .* 20
            weights, lse = softmax_lse(x)
            @test near(sum(weights; dims = 1), ones(T, 1, size(x, 2), size(x, 3)))
            @test near(exp.(x .- reshape(lse, 1, size(lse)...)), weights)
            @test same(softmax(PermutedDimsArray(permutedims(x, (3, 1, 2)), (2, 3, 1))), weights)
            longer = cat(x, fill(T(-Inf), 3, size(x, 2), size(x, 3)); dims = 1)
            @test same(softmax(longer)[1:size(x, 1), :, :], weights) && same(softmax_lse(longer)[2], lse)
            @test same(softmax(x[:, :, 1]), weights[:, :, 1])
        end
    end

    @inferred softmax_lse(randn(T, 3, 2))
end
