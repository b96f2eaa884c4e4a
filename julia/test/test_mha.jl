@testset "mha by hand $T" for T in FLOATS
    identity(n) = Matrix{T}(I, n, n)

    @testset "heads lie side by side (B48)" begin
        # Each token sees itself alone, so the heads' outputs are its channels, merged again in their order.
        x = row_major(T, (1, 2, 4), [1, 2, 5, 6, 3, 4, 7, 8])  # (4, 2, 1)
        layer = MultiHeadAttention((identity(4) for _ in 1:4)...; num_heads = 2)
        @test layer(x; mask = Mask(window = (0, 0))) == x
    end

    @testset "weights are (in, out), y = w' x + b (B08)" begin
        w_v = row_major(T, (2, 3), [1, 2, 3, 4, 5, 6])  # (3, 2)
        x = row_major(T, (1, 1, 3), [1, 10, 100])  # (3, 1, 1)
        layer = MultiHeadAttention(zeros(T, 3, 2), zeros(T, 3, 2), w_v, identity(2); num_heads = 1)
        @test layer(x)[:] == T[321, 654]
        biased = MultiHeadAttention(
            zeros(T, 3, 2), zeros(T, 3, 2), w_v, identity(2); num_heads = 1, b_v = T[1, 2], b_o = T[10, 20]
        )
        @test biased(x)[:] == T[332, 676]
    end

    @testset "KV heads are shared, the context has its own width" begin
        w_v = row_major(T, (2, 1), [10, 20])  # one KV head a row
        layer = MultiHeadAttention(
            zeros(T, 3, 4), zeros(T, 1, 2), w_v, identity(4); num_heads = 4, num_kv_heads = 2
        )
        context = row_major(T, (1, 2, 1), [1, 3])
        @test layer(zeros(T, 3, 1, 1), context)[:] == T[20, 20, 40, 40]
    end

    @testset "sizes of 0" begin
        weights = (zeros(T, 3, 4), zeros(T, 3, 4), zeros(T, 3, 6), zeros(T, 6, 5))
        layer = MultiHeadAttention(weights...; num_heads = 2)
        @test size(layer(zeros(T, 3, 0, 2))) == (5, 0, 2)
        @test size(layer(zeros(T, 3, 2, 0))) == (5, 2, 0)
        steps = mha_steps(layer, zeros(T, 3, 2, 1), zeros(T, 3, 0, 1))
        @test same(steps.output, zeros(T, 5, 2, 1)) && same(steps.lse, fill(T(-Inf), 2, 2, 1))
    end
end

@testset "mha properties $T" for T in FLOATS
    rng = MersenneTwister(5)
    for _ in 1:15
        B, Tq, Tk, C, Cc, D, Dv, Cout = (rand(rng, 1:6) for _ in 1:8)
        Hkv, G = rand(rng, 1:2), rand(rng, 1:3)
        Hq = Hkv * G
        random(dims...) = randn(rng, T, dims...)
        w_q, w_k = random(C, D * Hq), random(Cc, D * Hkv)
        w_v, w_o = random(Cc, Dv * Hkv), random(Dv * Hq, Cout)
        b_q, b_o = random(D * Hq), random(Cout)
        options = (num_heads = Hq, num_kv_heads = Hkv, b_q = b_q, b_o = b_o)
        layer = MultiHeadAttention(w_q, w_k, w_v, w_o; options...)
        x, context = random(C, Tq, B), random(Cc, Tk, B)
        mask = random_mask(rng, Tk, Tq, Hq, B)
        steps = mha_steps(layer, x, context; mask = mask, softcap = 3)

        # the same as its parts, one token and one head at a time
        part(w, x, n, h) = w[:, (h-1)*n+1:h*n]' * x
        project(w, x, n, heads) =
            T[part(w, x[:, t, b], n, h)[d] for d in 1:n, t in 1:size(x, 2), h in 1:heads, b in 1:B]
        q = project(w_q, x, D, Hq) .+ reshape(b_q, D, 1, Hq, 1)
        k, v = project(w_k, context, D, Hkv), project(w_v, context, Dv, Hkv)
        heads = sdpa_steps(q, k, v; mask = mask, softcap = 3)
        want = T[(w_o' * vec(heads.output[:, t, :, b]))[c] + b_o[c] for c in 1:Cout, t in 1:Tq, b in 1:B]
        @test isapprox(steps.output, want; rtol = 10 * tolerance(T), atol = 50 * tolerance(T))
        @test isapprox(steps.weights, heads.weights; atol = 50 * tolerance(T))

        # views are their copies, up to the order in which a matrix product sums
        wide = view(cat(x, x; dims = 2), :, 1:Tq, :)
        turned = PermutedDimsArray(permutedims(w_q, (2, 1)), (2, 1))
        again = MultiHeadAttention(turned, w_k, w_v, w_o; options...)(wide, context; mask = mask, softcap = 3)
        @test isapprox(again, steps.output; rtol = 10 * tolerance(T), atol = 50 * tolerance(T))
    end
end

@testset "mha padding that holds NaN" begin
    rng = MersenneTwister(6)
    w = (randn(rng, 4, 4) for _ in 1:4)
    layer = MultiHeadAttention(w...; num_heads = 2)
    x = randn(rng, 4, 5, 2)
    mask = Mask(kv_lengths = Int64[3, 5])
    clean = layer(x; mask = mask)
    x[:, 4:5, 1] .= NaN
    dirty = layer(x; mask = mask)
    @test same(dirty[:, 1:3, 1], clean[:, 1:3, 1]) && same(dirty[:, :, 2], clean[:, :, 2])
end

@testset "mha types" begin
    for T in FLOATS
        layer = MultiHeadAttention((randn(T, 4, 4) for _ in 1:4)...; num_heads = 2)
        @test (@inferred layer(randn(T, 4, 3, 1))) isa Array{T,3}
        @test (@inferred mha_steps(layer, randn(T, 4, 3, 1))) isa MhaSteps{T}
    end
end
