@testset "scoring $T" for T in FLOATS
    rng = MersenneTwister(29)
    q, k, v = randn(rng, T, 3, 4, 2), randn(rng, T, 5, 6, 2), randn(rng, T, 2, 6, 2)
    w_q, w_k, w_v, w = randn(rng, T, 3, 7), randn(rng, T, 5, 7), randn(rng, T, 7), randn(rng, T, 5, 3)
    shared = randn(rng, T, 3, 6, 2)
    cases = (
        ("additive", k, (w_q = w_q, w_k = w_k, w_v = w_v), (q, k) -> sum(w_v .* tanh.(w_q' * q + w_k' * k))),
        ("general", k, (w = w,), (q, k) -> sum((w * q) .* k)),
        ("dot", shared, NamedTuple(), (q, k) -> sum(q .* k)),
        ("scaled", shared, NamedTuple(), (q, k) -> sum(q .* k) / sqrt(T(3))),
    )
    for (form, keys, weights, score) in cases
        steps = scoring_steps(form, q, keys, v; weights..., kv_lengths = Int64[4, 0])
        want = [score(q[:, i, b], keys[:, j, b]) for j in 1:6, i in 1:4, b in 1:2]
        @test near(steps.scores, want)
        @test near(steps.weights[1:4, :, 1], softmax(want[1:4, :, 1])) && all(iszero, steps.weights[:, :, 2])
        @test all(iszero, steps.weights[5:6, :, 1]) && all(iszero, steps.output[:, :, 2])
        @test near(steps.output[:, :, 1], v[:, :, 1] * steps.weights[:, :, 1])
        keys, values = copy(keys), copy(v)
        keys[:, 5:6, 1] .= NaN
        values[:, 5:6, 1] .= Inf
        @test same(scoring(form, q, keys, values; weights..., kv_lengths = Int64[4, 0]), steps.output)
        @test size(scoring(form, q, keys[:, 1:0, :], v[:, 1:0, :]; weights...)) == (2, 4, 2)
        @test size(scoring(form, q[:, 1:0, :], keys, v; weights...)) == (2, 0, 2)
    end
    heads(x) = reshape(x, size(x, 1), size(x, 2), 1, size(x, 3))
    @test near(scoring("scaled", q, shared, v), sdpa(heads(q), heads(shared), heads(v))[:, :, 1, :])
end

@testset "structured $T" for T in FLOATS
    rng = MersenneTwister(30)
    h, w_1, w_2 = randn(rng, T, 3, 4, 2), randn(rng, T, 3, 5), randn(rng, T, 5, 2)
    steps = structured_steps(h, w_1, w_2)
    for b in 1:2
        A = permutedims(softmax(permutedims(w_2' * tanh.(w_1' * h[:, :, b]))))  # (R, T)
        @test near(permutedims(steps.weights[:, :, b]), A)
        @test near(permutedims(steps.output[:, :, b]), A * permutedims(h[:, :, b]))
        @test near([steps.penalty[b]], [sum(abs2, A * A' - I)])
    end
    dirty = copy(h)
    dirty[:, 3:4, 1] .= NaN
    short = structured_steps(dirty, w_1, w_2; kv_lengths = Int64[2, 0])
    @test near(short.output[:, :, 1], structured(h[:, 1:2, 1:1], w_1, w_2)[:, :, 1])
    @test all(iszero, short.output[:, :, 2]) && short.penalty[2] == 2
    # both means look at the one position there is
    one = structured_steps(h, zeros(T, 3, 5), w_2; kv_lengths = Int64[1, 1])
    @test one.penalty == T[2, 2] && near(one.output[:, 1, :], h[:, 1, :])
    @test size(structured(h, w_1, zeros(T, 5, 0))) == (3, 0, 2)
    @test size(structured(h[:, 1:0, :], w_1, w_2)) == (3, 2, 2)
end

@testset "codes of scoring and structured" begin
    q, k, v = zeros(3, 4, 2), zeros(5, 6, 2), zeros(2, 6, 2)
    code(form, q = q, k = k, v = v; options...) = code_of(() -> scoring(form, q, k, v; options...))
    additive = (w_q = zeros(3, 7), w_k = zeros(5, 7), w_v = zeros(7))
    @test code("additive"; additive...) == code("general"; w = zeros(5, 3)) == :none
    @test code("x") == :invalid_config
    @test code(SubString("generally", 1, 7); w = zeros(5, 3)) == :none  # any text is one
    @test code(1) == :invalid_config
    @test code("general") == :invalid_config
    @test code("additive"; additive..., w = zeros(5, 3)) == :invalid_config
    @test code("dot") == code("scaled") == code("general"; w = zeros(3, 5)) == :shape_mismatch
    @test code("additive"; additive..., w_v = zeros(6)) == :shape_mismatch
    @test code("additive"; additive..., w_k = zeros(5, 6)) == :shape_mismatch
    @test code("dot", q, zeros(3, 6, 1)) == :shape_mismatch
    @test code("dot", q, zeros(3, 5, 2)) == :shape_mismatch
    @test code("dot", zeros(3, 4), q) == :shape_mismatch
    @test code("dot", q, zeros(Float32, 3, 6, 2)) == :dtype_mismatch
    @test code("general"; w = zeros(Float32, 5, 3)) == :dtype_mismatch
    @test code("dot", q, zeros(3, 6, 2); kv_lengths = Int64[7, 0]) == :invalid_config
    means(h, w_1, w_2; options...) = code_of(() -> structured(h, w_1, w_2; options...))
    @test means(q, zeros(3, 5), zeros(5, 2)) == :none && means(q, zeros(4, 5), zeros(5, 2)) == :shape_mismatch
    @test means(q, zeros(3, 5), zeros(4, 2)) == :shape_mismatch
    @test means(q, zeros(Float32, 3, 5), zeros(5, 2)) == :dtype_mismatch
    @test means(q, zeros(3, 5), zeros(5, 2); kv_lengths = [1.0, 2.0]) == :dtype_mismatch
end
