using RosettaAttention: rope_frequencies, scaled

# One head and one row: the channels of a few positions.
one_head(T, columns...) = reshape(T.(vcat(columns...)), :, length(columns), 1, 1)
at(positions...) = reshape(Int64[positions...], :, 1)

@testset "rope $T" for T in FLOATS
    @testset "pairs (RopePairing)" begin
        x = one_head(T, 1:4)
        limit = T == Float32 ? 1e-6 : 5e-7  # half of the sixth digit, and in f32 roundings of 4
        half = rope(x; positions = at(1))
        @test isapprox(half[:], [-1.984111, 1.959901, 2.462378, 4.019800]; atol = 2limit)
        neighbours = rope(x, Rope(interleaved = true); positions = at(1))
        @test isapprox(neighbours[:], [-1.142640, 1.922076, 2.959851, 4.029800]; atol = 2limit)
        score(options) = sum(rope(x, options; positions = at(2)) .* rope(one_head(T, 4:-1:1), options))
        limit = T == Float32 ? 1e-5 : 5e-7  # in f32 some ten roundings of terms up to 16 as well
        @test isapprox(score(Rope()), -3.456429; atol = limit)
        @test isapprox(score(Rope(interleaved = true)), 1.190051; atol = limit)
    end

    @testset "angles in Float64 (AnglePrecision)" begin
        steps = rope_steps(zeros(T, 32, 1, 1, 1), Rope(offset = 1857))
        @test isapprox(steps.cos[2], 0.306693; atol = 5e-7)  # half of the sixth digit
        far = rope_steps(zeros(T, 2, 1, 1, 1), Rope(offset = 10^9))
        @test far.cos[] === T(cos(1.0e9)) && far.sin[] === T(sin(1.0e9))
    end

    @testset "options" begin
        rng = MersenneTwister(24)
        x = randn(rng, T, 6, 4, 3, 2)
        @test same(rope(x)[:, 1, :, :], x[:, 1, :, :])  # position 0
        part = rope(x, Rope(rotary_dim = 4, base = 100, offset = 3))
        @test same(part[5:6, :, :, :], x[5:6, :, :, :])
        @test same(part[1:4, :, :, :], rope(x[1:4, :, :, :], Rope(base = 100, offset = 3)))
        positions = Int64[3 7; 4 0; 5 2; 6 9]
        @test same(rope(x; positions = positions)[:, :, :, 1], rope(x, Rope(offset = 3))[:, :, :, 1])
        @test near(sum(abs2, rope(x; positions = positions); dims = 1), sum(abs2, x; dims = 1))
        table = rope_steps(zeros(T, 6, 10, 1, 1))
        tables = (cos = table.cos[:, :, 1], sin = table.sin[:, :, 1])
        @test same(rope(x; positions = positions, tables...), rope(x; positions = positions))
        @test size(rope(x[:, 1:0, :, :])) == (6, 0, 3, 2) && size(rope(x[:, :, :, 1:0])) == (6, 4, 3, 0)
        @test same(rope(view(x, :, :, 3:-1:1, :)), rope(x[:, :, 3:-1:1, :]))
        # the length that the scaling goes by is each row's own
        by_length = Rope(scaling = DynamicScaling(factor = 2, original_length = 4))
        alone = rope(x[:, :, :, 1:1], by_length; positions = positions[:, 1:1])
        @test same(rope(x, by_length; positions = positions)[:, :, :, 1:1], alone)
    end
end

@testset "scaling" begin
    f = rope_frequencies(10000.0, 8)
    @test f == 10000.0 .^ [0, -0.25, -0.5, -0.75]
    frequencies(scaling, L = 100) = scaled(scaling, f, 8, 10000.0, L)
    @test frequencies(LinearScaling(factor = 4)) == (f ./ 4, 1.0)
    dynamic = DynamicScaling(factor = 2, original_length = 100)
    @test frequencies(dynamic, 100) == (f, 1.0)
    @test near(frequencies(dynamic, 200)[1], rope_frequencies(10000.0 * 3^(8 / 6), 8))
    stated = DynamicScaling(factor = 2, original_length = 100, length = 200)
    @test frequencies(stated, 5) == frequencies(dynamic, 200)
    @test scaled(dynamic, [1.0], 2, 10000.0, 500) == ([1.0], 1.0)

    # turns within 2π·64 positions: 64, 6.4, 0.64, 0.064, so the ramp of beta 8 to 0.5 covers the middle
    yarn = YarnScaling(factor = 4, original_length = 2π * 64 |> round |> Int, beta_fast = 8, beta_slow = 0.5)
    low, high = floor(8 * log(402 / (2π * 8)) / (2 * log(1e4))), ceil(8 * log(402 / π) / (2 * log(1e4)))
    ramp = clamp.(((0:3) .- low) ./ (high - low), 0, 1)
    stretched, attention = frequencies(yarn)
    @test near(stretched, f .* (1 .- ramp) .+ f ./ 4 .* ramp) && near(attention, 0.1 * log(4) + 1)
    @test frequencies(YarnScaling(factor = 1, original_length = 402, attention_factor = 1.5))[2] == 1.5
    @test frequencies(YarnScaling(factor = 0.5, original_length = 402))[2] == 1

    llama = Llama3Scaling(factor = 8, original_length = 100, low_freq_factor = 1, high_freq_factor = 4)
    stretched, attention = frequencies(llama)
    t = (100 * f[2] / 2π - 1) / 3
    @test stretched[1] == f[1] && stretched[3:4] == f[3:4] ./ 8 && attention == 1
    @test near(stretched[2], (1 - t) * f[2] / 8 + t * f[2])

    factors = (short_factor = [1, 1, 1, 2], long_factor = [2, 3, 4, 5])
    long = LongRopeScaling(; factors..., original_length = 100, factor = 16)
    @test frequencies(long, 100)[1] == f ./ [1, 1, 1, 2] && frequencies(long, 101)[1] == f ./ [2, 3, 4, 5]
    @test near(frequencies(long)[2], sqrt(1 + log(16) / log(100)))
    x = ones(8, 1, 1, 1)
    @test near(rope_steps(x, Rope(scaling = long)).cos, fill(sqrt(1 + log(16) / log(100)), 4, 1, 1))
end

@testset "sinusoidal $T" for T in FLOATS
    x = zeros(T, 4, 2, 1)
    want = [0, 1, 0, 1, sin(1.0), cos(1.0), sin(0.01), cos(0.01)]
    @test sinusoidal(x)[:] == T.(want)
    @test sinusoidal(x; halves = true)[:, 2, 1] == T.(want[[5, 7, 6, 8]])
    steps = sinusoidal_steps(x .+ 2; positions = at(3, 0), base = 100)
    @test steps.table[:, 1, 1] == T[sin(3.0), cos(3.0), sin(3 * 0.1), cos(3 * 0.1)]
    @test same(steps.output, x .+ 2 .+ steps.table)
    @test same(sinusoidal(x; offset = 5), sinusoidal(x; positions = at(5, 6)))
    @test size(sinusoidal(zeros(T, 0, 2, 1))) == (0, 2, 1) && size(sinusoidal(zeros(T, 2, 0, 3))) == (2, 0, 3)
end

@testset "alibi $T" for T in FLOATS
    @test alibi_slopes(8) == 2.0 .^ -(1:8) && alibi_slopes(3) == 2.0 .^ [-4, -8, -2]
    @test alibi_slopes(1) == [2.0^-8] && alibi_slopes(0) == [] && length(alibi_slopes(12)) == 12
    @test alibi_slopes(12)[9:12] == 2.0 .^ [-0.5, -1.5, -2.5, -3.5]
    steps = alibi_steps(ones(T, 3, 2, 2, 1); q_offset = 1)
    @test steps.slopes == T[2.0^-4, 2.0^-8]
    @test steps.bias[:, :, 1] == -T(2.0^-4) .* T[1 2; 0 1; 1 0]
    @test same(steps.output[:, :, :, 1], 1 .+ steps.bias)
    @test size(alibi(zeros(T, 0, 2, 3, 1))) == (0, 2, 3, 1)
end

@testset "relative_bias $T" for T in FLOATS
    function buckets(n, far, r; both = true)
        options = (bidirectional = both, max_distance = far, q_offset = both ? 0 : r)
        return relative_bias_steps(zeros(T, r + 1, 1, 1, 1), zeros(T, 1, n); options...).buckets[:, 1]
    end
    # 16 exact-and-logarithmic buckets each way; half of them are exact
    @test buckets(32, 128, 8)[1:9] == [0; 17:23; 24]
    @test buckets(32, 128, 200)[[129, 201]] == [31, 31] && buckets(32, 128, 200)[17] == 16 + 8 + 2
    @test buckets(32, 128, 127; both = false)[[1, 113, 128]] == [31, 15, 0]  # distances 127, 15, 0
    @test buckets(8, 16, 16)[[5, 9, 17]] .- 4 == [2, 3, 3]  # quotients that are whole: 2 + log2(4/2)/3·2, …
    scores, table = randn(MersenneTwister(25), T, 3, 2, 2, 2), T[1 2 3 4; 5 6 7 8]
    steps = relative_bias_steps(scores, table; max_distance = 3)
    @test eltype(steps.buckets) == Int64 && steps.buckets == [0 1; 3 0; 3 3]
    @test same(steps.output, scores .+ T[table[h, n+1] for n in steps.buckets, h in 1:2])
    later = relative_bias_steps(scores, table; max_distance = 3, bidirectional = false)
    @test later.buckets == [0 1; 0 0; 0 0]
end

# Beyond all positions, and beyond what a sum with an Int64 could hold.
const FAR = (2^62, typemax(Int), typemin(Int), typemax(UInt64), big(10)^30, -big(10)^30)

@testset "offsets beyond all positions" begin
    scores, x, q = zeros(3, 2, 2, 1), zeros(4, 2, 1), zeros(1, 2, 1, 1)
    for far in FAR
        before = far < 0
        clamped = RosettaAttention.position_of(far)
        @test clamped == (before ? -2^62 : 2^62)
        @test alibi(scores; q_offset = far)[1] == -2.0^-4 * 2.0^62
        buckets = relative_bias_steps(scores, zeros(2, 32); q_offset = far).buckets
        @test all(==(before ? 31 : 15), buckets)
        @test same(rope(q .+ ones(2), Rope(offset = far)), rope(q .+ ones(2), Rope(offset = clamped)))
        @test same(sinusoidal(x; offset = far), sinusoidal(x; offset = clamped))
        for window in (nothing, (0, big(10)^30), (typemax(UInt64), 0))
            sees_left = window === nothing || window[1] > 0
            mask = Mask(causal = true, q_offset = far, window = window)
            # a window of 2^64 does not end before a position of 2^62
            @test all(==(!before && sees_left), visible(mask, 3, 2, 1, 1))
        end
        code = code_of(() -> dropout(zeros(3), Dropout(0.5, 0); offset = far))
        @test code == (before ? :invalid_config : :none)
    end
    rows = Mask(causal = true, q_offset = Int64[typemax(Int64), typemin(Int64)])
    @test visible(rows, 3, 2, 1, 2)[:] == [trues(6); falses(6)]
    turning = RotatingCache{Float64}(1, 1, 2, 1; window = 2, rope = Rope())
    append!(turning, ones(2, 3, 1, 1), ones(1, 3, 1, 1))
    for far in FAR  # before all that is held, or beyond its window
        @test attend(turning, ones(2, 2, 1, 1); mask = Mask(q_offset = far))[:] == [0, 0]
    end
end

@testset "codes of positions" begin
    x = zeros(4, 3, 2, 1)
    rope_code(options = Rope(); x = x, more...) = code_of(() -> rope(x, options; more...))
    @test rope_code() == :none
    @test rope_code(x = zeros(4, 3, 2)) == :shape_mismatch
    @test rope_code(x = zeros(3, 3, 2, 1)) == :shape_mismatch
    @test rope_code(x = zeros(0, 3, 2, 1)) == :shape_mismatch
    @test rope_code(Rope(rotary_dim = 2); x = zeros(3, 3, 2, 1)) == :none
    for R in (0, 1, 3, 6, 2.0, "4", true)
        @test rope_code(Rope(rotary_dim = R)) == :invalid_config
    end
    for base in (0, -1, Inf, NaN, "x", true)
        @test rope_code(Rope(base = base)) == :invalid_config
    end
    @test rope_code(Rope(interleaved = 1)) == rope_code(Rope(offset = 0.5)) == rope_code(5) == :invalid_config
    @test rope_code(; positions = zeros(Int64, 3)) == :shape_mismatch
    @test rope_code(; positions = zeros(Int64, 3, 2)) == :shape_mismatch
    @test rope_code(; positions = zeros(Int32, 3, 1)) == :dtype_mismatch
    @test rope_code(; positions = zeros(3, 1)) == :dtype_mismatch
    @test rope_code(Rope(offset = 1); positions = zeros(Int64, 3, 1)) == :invalid_config
    tables = (cos = zeros(2, 3), sin = zeros(2, 3))
    @test rope_code(; tables...) == :none
    @test rope_code(Rope(offset = 1); tables...) == rope_code(Rope(offset = -1); tables...) == :invalid_config
    @test rope_code(Rope(base = 10000); tables...) == rope_code(; cos = zeros(2, 3)) == :invalid_config
    @test rope_code(; tables..., sin = zeros(2, 4)) == :shape_mismatch
    @test rope_code(; cos = zeros(1, 3), sin = zeros(1, 3)) == :shape_mismatch
    @test rope_code(; tables..., sin = zeros(Float32, 2, 3)) == :dtype_mismatch
    short = LongRopeScaling(short_factor = [1.0], long_factor = [1.0, 2.0], original_length = 8)
    wrong = [
        5,
        LinearScaling(),
        LinearScaling(factor = 0),
        LinearScaling(factor = "2"),
        DynamicScaling(factor = 2),
        DynamicScaling(factor = 2, original_length = 0),
        DynamicScaling(factor = 2, original_length = 4, length = -1),
        YarnScaling(factor = 2),
        YarnScaling(factor = 2, original_length = 4, truncate = 1),
        YarnScaling(factor = 2, original_length = 4, attention_factor = Inf),
        Llama3Scaling(original_length = 4),
        Llama3Scaling(factor = 2, original_length = 4, low_freq_factor = 4),
        short,
        LongRopeScaling(short_factor = [1, 1], long_factor = [1, 0], original_length = 8),
    ]
    for scaling in wrong
        @test rope_code(Rope(scaling = scaling)) == :invalid_config
    end
    @test rope_code(Rope(base = 1, scaling = YarnScaling(factor = 2, original_length = 4))) == :invalid_config
    @test code_of(() -> sinusoidal(zeros(3, 2, 1))) == :shape_mismatch
    @test code_of(() -> sinusoidal(zeros(4, 2))) == :shape_mismatch
    @test code_of(() -> sinusoidal(zeros(4, 2, 1); halves = 1)) == :invalid_config
    @test code_of(() -> sinusoidal(zeros(4, 2, 1); base = 0)) == :invalid_config
    @test code_of(() -> alibi(zeros(3, 2, 2))) == :shape_mismatch
    @test code_of(() -> alibi(zeros(3, 2, 2, 1); q_offset = 0.5)) == :invalid_config
    bias_code(table; options...) = code_of(() -> relative_bias(zeros(3, 2, 2, 1), table; options...))
    @test bias_code(zeros(3, 4)) == :shape_mismatch
    @test bias_code(zeros(2, 5)) == :shape_mismatch
    @test bias_code(zeros(2, 2)) == :shape_mismatch
    @test bias_code(zeros(2)) == :shape_mismatch
    @test bias_code(zeros(2, 2); bidirectional = false) == :none
    @test bias_code(zeros(2, 1); bidirectional = false) == :shape_mismatch
    @test bias_code(zeros(2, 8); max_distance = 2) == :invalid_config
    @test bias_code(zeros(2, 8); bidirectional = 1) == :invalid_config
    @test bias_code(zeros(Float32, 2, 4)) == :dtype_mismatch
end
