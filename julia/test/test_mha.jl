@testset "mha by hand $T" for T in FLOATS
    identity(n) = Matrix{T}(I, n, n)

    @testset "heads lie side by side (HeadReshape)" begin
        # Each token sees itself alone, so the heads' outputs are its channels, merged again in their order.
        x = row_major(T, (1, 2, 4), [1, 2, 5, 6, 3, 4, 7, 8])  # (4, 2, 1)
        layer = MultiHeadAttention((identity(4) for _ in 1:4)...; num_heads = 2)
        @test layer(x; mask = Mask(window = (0, 0))) == x
    end

    @testset "weights are (in, out), y = w' x + b" begin
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
        @test near(steps.output, want)
        @test near(steps.weights, heads.weights)

        # views are their copies, up to the order in which a matrix product sums
        wide = view(cat(x, x; dims = 2), :, 1:Tq, :)
        turned = PermutedDimsArray(permutedims(w_q, (2, 1)), (2, 1))
        again = MultiHeadAttention(turned, w_k, w_v, w_o; options...)(wide, context; mask = mask, softcap = 3)
        @test near(again, steps.output)
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
        @test (@inferred mha_steps(layer, randn(T, 4, 3, 1))) isa NamedTuple
    end
end

@testset "mha's later options $T" for T in (Float64,)
    rng = MersenneTwister(35)
    weights = [randn(rng, T, 6, 8), randn(rng, T, 6, 4), randn(rng, T, 6, 4), randn(rng, T, 8, 6)]
    x, heads = randn(rng, T, 6, 5, 2), (num_heads = 4, num_kv_heads = 2)
    layer(; more...) = MultiHeadAttention(weights...; heads..., more...)
    split(x, w, n) = permutedims(reshape(w' * reshape(x, 6, :), 2, n, 5, 2), (1, 3, 2, 4))
    q, k, v = split(x, weights[1], 4), split(x, weights[2], 2), split(x, weights[3], 2)

    @testset "norms before the rotation" begin
        q_norm, k_norm, positions = randn(rng, T, 2), randn(rng, T, 2), Int64[3 0; 4 9; 5 1; 6 2; 7 7]
        turned(x, w) = rope(rms_norm(x, w; eps = 0.1), Rope(base = 50); positions = positions)
        want = sdpa_steps(turned(q, q_norm), turned(k, k_norm), v)
        normed = layer(q_norm = q_norm, k_norm = k_norm, qk_norm_eps = 0.1, rope = Rope(base = 50))
        steps = mha_steps(normed, x; positions = positions)
        @test near(steps.weights, want.weights)
        @test near(steps.mean_weights, dropdims(sum(steps.weights; dims = 3); dims = 3) ./ 4)
        @test near(sum(steps.mean_weights; dims = 1), ones(1, 5, 2))
    end

    @testset "pruned heads" begin
        whole, none = layer()(x), layer()(x; head_mask = fill(false, 4))
        @test all(iszero, none) && same(layer()(x; head_mask = fill(true, 4)), whole)
        parts = [layer()(x; head_mask = [h == n for h in 1:4]) for n in 1:4]
        @test near(sum(parts), whole)
        dirty = copy(weights[1])
        dirty[:, 3:4] .= NaN  # all of head 2
        other = MultiHeadAttention(dirty, weights[2:4]...; heads...)
        others = [true, false, true, true]
        @test same(other(x; head_mask = others), layer()(x; head_mask = others))
    end

    @testset "one projection for all three" begin
        biases = (b_q = randn(rng, T, 8), b_k = randn(rng, T, 4), b_v = randn(rng, T, 4))
        want = layer(; biases...)(x)
        blocks = MultiHeadAttention(hcat(weights[1:3]...), weights[4]; heads..., b_qkv = vcat(biases...))
        @test same(blocks(x), want)
        columns(x, range) = selectdim(x, ndims(x), range)
        group(q, k, v, g) = (columns(q, 4g-3:4g), columns(k, 2g-1:2g), columns(v, 2g-1:2g))
        by_head(q, k, v) = cat(group(q, k, v, 1)..., group(q, k, v, 2)...; dims = ndims(q))
        packed = (packing = "heads", b_qkv = by_head(biases...))
        grouped = MultiHeadAttention(by_head(weights[1:3]...), weights[4]; heads..., packed...)
        @test same(grouped(x), want)
        @test num_parameters(blocks) == num_parameters(layer(; biases...)) == 6 * 16 + 16 + 48
        one_head = MultiHeadAttention(weights[1], weights[1], weights[1], weights[4]; num_heads = 1)
        @test num_parameters(one_head) == 4 * 48
    end
end

@testset "codes of mha's later options" begin
    w, x = zeros(4, 4), zeros(4, 3, 2)
    code(x = x, context = x; call = NamedTuple(), fields...) =
        code_of(() -> MultiHeadAttention(w, w, w, w; num_heads = 2, fields...)(x, context; call...))
    @test code(rope = Rope(), call = (positions = zeros(Int64, 3, 2),)) == :none
    @test code(rope = 5) == code(rope = Rope(rotary_dim = 4)) == code(qk_norm_eps = -1) == :invalid_config
    @test code(x, copy(x); rope = Rope()) == code(call = (positions = zeros(Int64, 3, 2),)) == :invalid_config
    @test code(q_norm = zeros(3)) == :shape_mismatch
    @test code(k_norm = zeros(2, 1)) == :shape_mismatch
    @test code(call = (head_mask = [true],)) == :shape_mismatch
    @test code(rope = Rope(), call = (positions = zeros(Int64, 2, 2),)) == :shape_mismatch
    @test code(q_norm = zeros(Float32, 2)) == code(call = (head_mask = [1, 0],)) == :dtype_mismatch
    @test code(call = (dropout = 0.5,)) == code(call = (dropout = Dropout(2, 0),)) == :invalid_config
    packed(w_qkv; more...) = code_of(() -> MultiHeadAttention(w_qkv, w; num_heads = 2, more...)(x))
    @test packed(zeros(4, 12)) == :none
    @test packed(zeros(4, 12); packing = "x") == :invalid_config
    @test packed(zeros(4, 12); num_kv_heads = 3) == :invalid_config
    @test packed(zeros(4, 11)) == :shape_mismatch
    @test packed(zeros(4)) == :shape_mismatch
    @test packed(zeros(4, 12); b_qkv = zeros(11)) == :shape_mismatch
    @test packed(zeros(Int, 4, 12)) == packed(zeros(4, 12); b_qkv = zeros(Float32, 12)) == :dtype_mismatch
end
