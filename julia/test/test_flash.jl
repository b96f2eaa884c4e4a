# Flash and split-KV are sdpa, whatever the tiles; merging states is exact for empty ones.

@testset "flash and split $T" for T in FLOATS
    rng = MersenneTwister(23)
    for round in 1:25
        q, k, v = random_heads(rng, T)
        (_, Tq, Hq, B), Tk = size(q), size(k, 2)
        bias = ifelse.(rand(rng, Tk, 1, Hq) .< 0.2, T(-Inf), randn(rng, T, Tk, 1, Hq))
        options = (
            mask = random_mask(rng, Tk, Tq, Hq, B),
            bias = rand(rng, Bool) ? nothing : bias,
            softcap = rand(rng, Any[nothing, 1.5]),
            sinks = rand(rng, Any[nothing, randn(rng, T, Hq)]),
            dropout = rand(rng, Any[nothing, Dropout(0.3, 5)]),
        )
        want = sdpa_steps(q, k, v; options...)
        for state in (
            flash(q, k, v; options..., block_q = rand(rng, 1:4), block_k = rand(rng, 1:4)),
            flash(q, k, v; options...),
            split_kv(q, k, v; options..., splits = rand(rng, 1:12)),
        )
            @test near(state.output, want.output) && near(state.lse, want.lse)
        end
    end

    @testset "hidden rows, poison, infinities" begin
        q, k, v = score_form(T, [-1e5, -1e5 + 1], [3, 6])
        @test near(flash(q, k, v; scale = 1, block_k = 1).output[:], T[3 + 3 / (1 + exp(-1))])
        k[2] = NaN
        hidden = (mask = Mask(kv_lengths = Int64[1]), block_k = 1)
        @test flash(q, k, v; hidden...).output[] === T(3) && isnan(flash(q, k, v; block_k = 1).output[])
        for poison in (NaN, Inf)
            q, k, v = score_form(T, [poison, 0, 1], [3, 6, 9])
            for state in (flash(q, k, v; scale = 1, block_k = 1), split_kv(q, k, v; scale = 1))
                @test isnan(state.output[]) && isnan(state.lse[])
            end
        end
        state = flash(q, k, v; mask = Mask(kv_lengths = Int64[0]), sinks = T[0.7])
        @test state.output[] === T(0) && state.lse[] === T(0.7)
        state = split_kv(q, k, v; mask = Mask(kv_lengths = Int64[0]))
        @test state.output[] === T(0) && state.lse[] === T(-Inf)
    end

    @testset "merge" begin
        state = merge_states(fill(T(0), 1), fill(T(0)), fill(T(4), 1), fill(log(T(3))))  # EmptyState
        @test near(state.output, T[3]) && near(state.lse, fill(log(T(4))))
        a, lse = randn(rng, T, 3, 4), randn(rng, T, 4)
        empty, junk = fill(T(-Inf), 4), fill(T(NaN), 3, 4)
        for state in (merge_states(a, lse, junk, empty), merge_states(junk, empty, a, lse))
            @test same(state.output, a) && same(state.lse, lse)
        end
        none = merge_states(junk, empty, junk, empty)
        @test same(none.output, zeros(T, 3, 4)) && same(none.lse, empty)
        for lse in (T(NaN), T(Inf)), other in (T(0), T(-Inf))
            state = merge_states(ones(T, 2), fill(lse), ones(T, 2), fill(other))
            @test all(isnan, state.output) && isnan(state.lse[])
        end
        @test size(merge_states(zeros(T, 3, 0), zeros(T, 0), zeros(T, 3, 0), zeros(T, 0)).output) == (3, 0)
    end

    @testset "varlen" begin
        lengths_q, lengths_k = [2, 0, 3, 1], [3, 2, 0, 4]
        q, k, v = randn(rng, T, 4, 4, 6), randn(rng, T, 4, 2, 9), randn(rng, T, 3, 2, 9)
        ends_q, ends_k = Int64[0; cumsum(lengths_q)], Int64[0; cumsum(lengths_k)]
        offsets = Int64[1, 0, 2, 3]
        options = (causal = true, window = (2, nothing), softcap = 3, q_offset = offsets)
        state = varlen(q, k, v, ends_q, ends_k; options...)
        for s in 1:4
            function rows(x, ends)
                slice = permutedims(x[:, :, ends[s]+1:ends[s+1]], (1, 3, 2))
                return reshape(slice, size(slice)..., 1)
            end
            mask = Mask(causal = true, window = (2, nothing), q_offset = offsets[s])
            alone = sdpa_steps(rows(q, ends_q), rows(k, ends_k), rows(v, ends_k); mask = mask, softcap = 3)
            @test same(rows(state.output, ends_q), alone.output)
            @test same(permutedims(state.lse[:, ends_q[s]+1:ends_q[s+1]]), alone.lse[:, :, 1])
        end
        nobody = varlen(q[:, :, 1:0], k[:, :, 1:0], v[:, :, 1:0], Int64[0], Int64[0])
        @test size(nobody.output) == (3, 4, 0) && size(nobody.lse) == (4, 0)
    end
end

@testset "codes of flash, merge and varlen" begin
    for bad in (0, -1, 1.5, "x", nothing, true)
        @test code_of(() -> flash(Q, K, V; block_q = bad)) == :invalid_config
        @test code_of(() -> flash(Q, K, V; block_k = bad)) == :invalid_config
        @test code_of(() -> split_kv(Q, K, V; splits = bad)) == :invalid_config
    end
    @test code_of(() -> flash(Q, K[:, :, :, 1:1], V)) == :shape_mismatch
    @test code_of(() -> split_kv(Q, Float32.(K), V)) == :dtype_mismatch
    a, lse = zeros(3, 4), zeros(4)
    merge_code(inputs...) = code_of(() -> merge_states(inputs...))
    @test merge_code(a, lse, a, lse) == :none
    for absent in 1:4
        inputs = Any[a, lse, a, lse]
        inputs[absent] = nothing
        @test merge_code(inputs...) == :dtype_mismatch
    end
    @test merge_code(a, zeros(3), a, lse) == merge_code(a, lse, zeros(2, 4), lse) == :shape_mismatch
    @test merge_code(fill(0.0), lse, a, lse) == merge_code(a, lse, a, zeros(4, 1)) == :shape_mismatch
    @test merge_code(a, Float32.(lse), a, lse) == merge_code(a, lse, Float32.(a), lse) == :dtype_mismatch
    q, k = zeros(2, 2, 4), zeros(2, 1, 5)
    varlen_code(ends_q, ends_k; q = q, v = k, options...) =
        code_of(() -> varlen(q, k, v, ends_q, ends_k; options...))
    @test varlen_code([0, 4], [0, 5]) == :none
    for ends in ([1, 4], [0, 3], [0, 5], [0, 3, 2, 4], [0, -1, 4])
        @test varlen_code(ends, fill(5, length(ends)) .* (1:length(ends) .> 1)) == :invalid_config
    end
    @test varlen_code([0, 4], [0, 2, 5]) == varlen_code(Int64[], Int64[]) == :shape_mismatch
    @test varlen_code(Int32[0, 4], [0, 5]) == varlen_code([0.0, 4.0], [0, 5]) == :dtype_mismatch
    @test varlen_code([0, 4], [0, 5]; q = zeros(2, 2, 4, 1)) == :shape_mismatch
    @test varlen_code([0, 4], [0, 5]; v = zeros(2, 1, 4)) == :shape_mismatch
    @test varlen_code([0, 4], [0, 5]; q_offset = [0, 1]) == :shape_mismatch
    @test varlen_code([0, 4], [0, 5]; softcap = 0) == :invalid_config
    @test varlen_code([0, 4], [0, 5]; causal = 1) == :invalid_config
end
