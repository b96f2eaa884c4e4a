# A second formula: one head at a time in matrices of Float64, no visible row left empty.
function matrix_attention(q, k, v, shown, bias, scale, softcap)
    q, k, v = Float64.(q), Float64.(k), Float64.(v)
    _, Tq, Hq, B = size(q)
    output = zeros(size(v, 1), Tq, Hq, B)
    for b in 1:B, h in 1:Hq
        g = 1 + (h - 1) ÷ (Hq ÷ size(k, 3))
        s = scale .* (k[:, :, g, b]' * q[:, :, h, b])
        s = softcap === nothing ? s : softcap .* tanh.(s ./ softcap)
        s = s .+ bias[:, :, h, b]
        e = exp.(s) .* shown[:, :, h, b]
        total = sum(e; dims = 1)
        output[:, :, h, b] = v[:, :, g, b] * (e ./ ifelse.(total .== 0, 1.0, total))
    end
    return output
end

@testset "sdpa by hand $T" for T in FLOATS
    log2 = log(T(2))

    @testset "row without a key (FullyMaskedRow)" begin
        q, k, v = score_form(T, [0, log2], [3, 6]; queries = 2)
        steps = sdpa_steps(q, k, v; scale = 1, mask = Mask(keep = [true false; true false]))
        @test near(steps.output[:], T[5, 0]) && steps.output[2] === T(0)
        @test near(steps.weights[:, :, 1, 1], T[1/3 0; 2/3 0])
        @test near(steps.lse[:], T[log(3), -Inf])
    end

    @testset "softcap comes before the mask, after the scale (SoftcapOrder)" begin
        q, k, v = score_form(T, [1, 3], [5, 100])
        @test sdpa(q, k, v; scale = 1, softcap = 2, mask = Mask(keep = [true, false]))[] === T(5)
        q, k, v = score_form(T, [8, 0], [3, 6])
        steps = sdpa_steps(q, k, v; scale = 0.5, softcap = 2)
        @test steps.output[] ≈ T(3.380898) rtol = 1e-6  # seven digits, and in f32 a few roundings
        @test near(steps.capped[:], T[2 * tanh(2.0), 0])
    end

    @testset "causal and window (CausalAlignment, WindowOffByOne, MaskComposition)" begin
        q, k, v = uniform_form(T, [1, 2, 4, 8])
        @test near(sdpa(q, k, v; mask = Mask(causal = true, window = (1, 0)))[:], T[1, 1.5, 3, 6])
        @test near(sdpa(q[:, 1:2, :, :], k, v; mask = Mask(causal = true))[:], T[1, 1.5])
        @test near(sdpa(q[:, 1:2, :, :], k, v; mask = Mask(causal = true, q_offset = 2))[:], T[7 / 3, 3.75])
        q, k, v = uniform_form(T, [1, 3]; queries = 4)
        @test near(sdpa(q, k, v; mask = Mask(causal = true, q_offset = -2))[:], T[0, 0, 1, 2])
        q, k, v = uniform_form(T, [1, 3])
        @test near(sdpa(q, k, v; mask = Mask(keep = [true true; false true]))[:], T[1, 2])
        q, k, v = uniform_form(T, [1, 2, 4])
        for keep in (nothing, fill(true, 3, 3))
            mask = Mask(causal = true, keep = keep)
            @test near(sdpa(q, k, v; mask = mask)[:], T[1, 1.5, 7 / 3])
            @test near(sdpa_steps(q, k, v; mask = mask).output[:], T[1, 1.5, 7 / 3])
        end
    end

    @testset "query heads share KV heads in blocks (GqaTile)" begin
        for (values, want) in (([10, 20], [10, 10, 10, 20, 20, 20]), ([10, 20, 30], [10, 10, 20, 20, 30, 30]))
            v = row_major(T, (1, length(values), 1, 1), values)
            @test sdpa(ones(T, 1, 1, 6, 1), ones(T, size(v)), v)[:] == T.(want)
        end
    end

    @testset "the last channel counts (VectorTail)" begin
        for D in (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)
            k = ones(T, D, 1, 1, 1)
            k[D] = 10
            @test sdpa_steps(ones(T, D, 1, 1, 1), k, k; scale = 1).scores[] === T(D + 9)
        end
    end

    @testset "absent is not 0 (AbsentIsNotZero), Dv is not D (ValueDim)" begin
        q, k = ones(T, 4, 1, 1, 1), zeros(T, 4, 2, 1, 1)
        k[:, 2] .= log2 / 2
        v = row_major(T, (1, 1, 2, 3), [3, 0, 1, 6, 3, 1])
        @test near(sdpa(q, k, v)[:], T[5, 2, 1])
        @test near(sdpa(q, k, v; scale = 0)[:], T[4.5, 1.5, 1])
        @test near(sdpa(q, k, v; scale = 1)[:], T[5.4, 2.4, 1])
        @test size(sdpa(q, k, v)) == (3, 1, 1, 1)
    end

    @testset "large numbers (Overflow)" begin
        q, k, v = score_form(T, [-1e5, -1e5], [3, 6])
        @test near(sdpa(q, k, v; scale = 1)[], T(4.5))
        q = fill(T(3e18), 64, 1, 1, 1)
        k = cat(q, zero(q); dims = 2)
        @test sdpa(q, k, row_major(T, (1, 1, 2, 1), [7, 9]))[] === T(7)
        q, k, v = score_form(T, [Inf, 0], [3, 6])
        steps = sdpa_steps(q, k, v; scale = 1)
        @test all(isnan, steps.weights) && isnan(steps.output[]) && isnan(steps.lse[])
    end

    @testset "bias" begin
        q, k, v = uniform_form(T, [1, 2, 4]; queries = 1)
        @test sdpa(q, k, v; bias = T[-1, -0.5, 0])[] ≈ T(2.826637) rtol = 1e-6  # seven digits, and f32
        @test sdpa(q, k, v; bias = T[-Inf, 0, 0])[] === T(3)
        @test near(sdpa(q, k, v; bias = fill(T(5)))[], T(7 / 3))
        k[2] = NaN  # a bias of -Inf hides even a score that is NaN
        @test sdpa(q, k, v; bias = T[0, -Inf, 0])[] === T(2.5)
    end

    @testset "sinks" begin
        q, k, v = uniform_form(T, [2, 4]; queries = 1)
        steps = sdpa_steps(q, k, v; sinks = T[log2])
        @test near(steps.output[], T(1.5)) && near(steps.lse[], log(T(4)))
        steps = sdpa_steps(q, k, v; sinks = T[0.7], mask = Mask(kv_lengths = Int64[0]))
        @test steps.output[] === T(0) && steps.lse[] === T(0.7) && all(iszero, steps.weights)
    end

    @testset "left padding, subnormal numbers" begin
        q, k, v = uniform_form(T, [100, 1, 3]; queries = 1)
        @test sdpa(q, k, v; mask = Mask(keep = [false, true, true]))[] === T(2)
        q, k, v = uniform_form(T, [1e-40, 1e-40]; queries = 1)
        @test sdpa(q, k, v)[] === T(1e-40)
    end

    @testset "sizes of 0 and 1 (EmptyKeys)" begin
        q, k, v = zeros(T, 2, 3, 4, 2), zeros(T, 2, 0, 2, 2), zeros(T, 5, 0, 2, 2)
        mask = Mask(causal = true, kv_lengths = Int64[0, 0])
        steps = sdpa_steps(q, k, v; bias = zeros(T, 1, 3), mask = mask)
        @test same(steps.output, zeros(T, 5, 3, 4, 2)) && same(steps.lse, fill(T(-Inf), 3, 4, 2))
        @test size(steps.weights) == (0, 3, 4, 2)
        @test size(sdpa(zeros(T, 2, 0, 4, 2), zeros(T, 2, 3, 2, 2), zeros(T, 5, 3, 2, 2))) == (5, 0, 4, 2)
        @test size(sdpa(zeros(T, 2, 1, 4, 0), zeros(T, 2, 3, 2, 0), zeros(T, 5, 3, 2, 0))) == (5, 1, 4, 0)
        @test size(sdpa(zeros(T, 2, 1, 0, 1), zeros(T, 2, 3, 0, 1), zeros(T, 5, 3, 0, 1))) == (5, 1, 0, 1)
        q, k, v = uniform_form(T, [1, 3]; queries = 1)
        both = (cat(x, x; dims = 4) for x in (q, k, v))
        @test sdpa(both...; mask = Mask(kv_lengths = Int64[0, 2]))[:] == T[0, 2]
    end
end

@testset "sdpa properties $T" for T in FLOATS
    rng = MersenneTwister(3)
    for round in 1:40
        q, k, v = random_heads(rng, T)
        (_, Tq, Hq, B), (Dv, Tk, Hkv, _) = size(q), size(v)
        mask = random_mask(rng, Tk, Tq, Hq, B)
        bias = randn(rng, T, Tk, rand(rng, Bool) ? Tq : 1, rand(rng, Bool) ? Hq : 1)
        softcap = rand(rng, Any[nothing, 1.5])
        sinks = rand(rng, Any[nothing, randn(rng, T, Hq)])
        options = (mask = mask, bias = bias, softcap = softcap, sinks = sinks)
        steps = sdpa_steps(q, k, v; options...)
        shown = visible(mask, Tk, Tq, Hq, B)

        # the same as a second formula
        plain = sdpa(q, k, v; mask = mask, bias = bias, softcap = softcap)
        full_bias = bias .+ zeros(T, Tk, Tq, Hq, B)
        want = matrix_attention(q, k, v, shown, full_bias, 1 / sqrt(size(q, 1)), softcap)
        @test near(plain, T.(want))

        # GQA is MHA on repeated heads, bit for bit
        repeated = [fld1(h, Hq ÷ Hkv) for h in 1:Hq]
        @test same(sdpa_steps(q, k[:, :, repeated, :], v[:, :, repeated, :]; options...).output, steps.output)

        # what is hidden from everybody may hold anything
        dirty_k, dirty_v = copy(k), copy(v)
        for b in 1:B, g in 1:Hkv, j in 1:Tk
            any(shown[j, :, repeated .== g, b]) && continue
            dirty_k[:, j, g, b] .= NaN
            dirty_v[:, j, g, b] .= rand(rng, T[NaN, Inf, -Inf])
        end
        dirty = sdpa_steps(q, dirty_k, dirty_v; options...)
        @test same(dirty.output, steps.output) && same(dirty.weights, steps.weights)
        @test same(dirty.lse, steps.lse)

        # views, strided and permuted arrays are their copies
        strided(x) = view(repeat(x; inner = (1, 2, 1, 1)), :, 1:2:2*size(x, 2), :, :)
        permuted(x) = PermutedDimsArray(permutedims(x, (3, 1, 4, 2)), (2, 4, 1, 3))
        reversed(x) = view(x[end:-1:1, :, :, :], size(x, 1):-1:1, :, :, :)
        @test same(sdpa(strided(q), permuted(k), reversed(v); options...), steps.output)
        @test same(sdpa(permuted(q), reversed(k), strided(v); options...), steps.output)

        # the rows of a batch do not see each other
        if B > 0
            b = rand(rng, 1:B)
            row = Mask(
                keep = mask.keep === nothing ? nothing : mask.keep[:, :, :, b:b],
                causal = mask.causal,
                window = mask.window,
                kv_lengths = mask.kv_lengths === nothing ? nothing : mask.kv_lengths[b:b],
                q_offset = mask.q_offset isa Vector ? mask.q_offset[b:b] : mask.q_offset,
            )
            alone = (x[:, :, :, b:b] for x in (q, k, v))
            @test same(sdpa(alone...; options..., mask = row), steps.output[:, :, :, b:b])
        end

        # weights: 0 where hidden, and a row with a visible key and no sink sums to 1
        @test all(iszero, steps.weights[.!shown])
        if sinks === nothing
            sums = sum(steps.weights; dims = 1)[1, :, :, :]
            @test near(sums, T.(any(shown; dims = 1)[1, :, :, :]))
        end
        @test eltype(steps.output) == eltype(steps.lse) == eltype(steps.capped) == T
    end
end

@testset "sdpa NaN where it is visible" begin
    q, k, v = randn(MersenneTwister(4), 2, 3, 1, 1), ones(2, 3, 1, 1), ones(1, 3, 1, 1)
    k[1, 2, 1, 1] = NaN
    steps = sdpa_steps(q, k, v; mask = Mask(causal = true))
    @test !isnan(steps.output[1]) && isnan(steps.output[2]) && isnan(steps.output[3])
    @test isequal(steps.weights[:, 2, 1, 1], [NaN, NaN, 0.0])
    @test isnan.(steps.lse[:]) == [false, true, true]

    # a weight that underflows to 0 is still visible: 0 · Inf is NaN
    q, k, v = score_form(Float32, [0, -200], [1, Inf])
    @test isnan(sdpa(q, k, v; scale = 1)[])
end

@testset "sdpa types" begin
    for T in FLOATS
        q = randn(T, 4, 3, 2, 1)
        @test (@inferred sdpa(q, q, q)) isa Array{T,4}
        @test (@inferred sdpa_steps(q, q, q; scale = 1, softcap = 2)).lse isa Array{T,3}
        @test (@inferred sdpa(view(q, :, 1:2, :, :), q, q; bias = zeros(T, 3))) isa Array{T,4}
    end
    # nothing but the arrays of the steps is allocated: no boxed number in a loop
    for T in FLOATS
        q = randn(T, 8, 100, 2, 1)
        options = (mask = Mask(causal = true), bias = zeros(T, 100), softcap = 2, sinks = zeros(T, 2))
        sdpa(q, q, q; options...)
        tables = 5 * sizeof(T) + 1  # scores, capped, biased, logits, weights, and who is visible
        @test (@allocated sdpa(q, q, q; options...)) < 1.1 * tables * 2 * 100^2
    end
    q = randn(4, 3, 2, 1)
    @test near(Float64.(sdpa(big.(q), big.(q), big.(q))), sdpa(q, q, q))
end
