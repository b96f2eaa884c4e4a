using RosettaAttention: key_list, random_blocks, sees

const PATTERNS = [
    Window(1, 2),
    Window(0, 0),
    Dilated(1, 2, 3),
    Dilated(0, 1, 1),
    Strided(3),
    Strided(1),
    Fixed(3, 1),
    Fixed(4, 4),
    Fixed(3, 0),
    Global(1, 0, [2, 9, 2]),
    Global(0, 0, Int[]),
    BigBird(2, 0, 1, 1, 7),
    BigBird(3, 1, 0, 2, 1),
    BigBird(1, 0, 0, 9, 3),
    BigBird(2, 2^40, 0, 0, 0),
]

# The pairs of a pattern as rows of keys, counted from 0.
rows(pattern, q_len, kv_len; options...) =
    [findall(column) .- 1 for column in eachcol(sparse_mask(pattern, q_len, kv_len; options...))]

@testset "patterns by hand" begin
    @test rows(Window(1, 0), 3, 4) == [[0], [0, 1], [1, 2]]
    @test rows(Dilated(1, 1, 2), 3, 5) == [[0, 2], [1, 3], [0, 2, 4]]
    @test rows(Strided(2), 5, 5) == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [0, 2, 3, 4]]
    @test rows(Fixed(2, 1), 5, 5) == [[0], [0, 1], [1, 2], [1, 2, 3], [1, 3, 4]]
    @test rows(Global(0, 0, [1]), 3, 3) == [[0, 1], [0, 1, 2], [1, 2]]
    @test rows(Blocks(2, [true false; true true]), 4, 3) == [[0, 1, 2], [0, 1, 2], [2], [2]]
    @test rows(Window(9, 9), 2, 3; causal = true) == [[0], [0, 1]]
    big = rows(BigBird(2, 0, 1, 0, 0), 6, 6)
    @test big == [0:5, 0:5, 0:3, 0:3, [0, 1, 4, 5], [0, 1, 4, 5]]
    # the draws: word a·random + n picks among the blocks that are left, in ascending order
    pattern, a = BigBird(1, 0, 1, 2, 5), 3
    words, left = philox_words(5, 2a, 2), [1, 2, 4, 5, 6, 7]
    want = [splice!(left, Int((UInt64(word) * length(left)) >> 32) + 1) for word in words]
    @test random_blocks(pattern, a, 8) == want && allunique(want)
    @test rows(BigBird(2, 0, 0, 1, 7), 4, 0) == [[], [], [], []]
    @test size(sparse_mask(Strided(2), 0, 3)) == (3, 0)
end

@testset "the list and the predicate agree" begin
    for q_len in (0, 1, 5, 9), kv_len in (0, 1, 6, 11), pattern in PATTERNS
        lists = [collect(Int, key_list(pattern, i, kv_len)) for i in 0:q_len-1]
        @test lists == rows(pattern, q_len, kv_len)
    end
end

@testset "sparse is sdpa with the mask $T" for T in FLOATS
    rng = MersenneTwister(28)
    for pattern in [PATTERNS; Blocks(2, rand(rng, Bool, 4, 3))], causal in (false, true)
        q, k, v = randn(rng, T, 3, 6, 4, 2), randn(rng, T, 3, 7, 2, 2), randn(rng, T, 2, 7, 2, 2)
        table = sparse_mask(pattern, 6, 7; causal = causal)
        hidden = .!vec(any(table; dims = 2))
        k[:, hidden, :, :] .= NaN
        v[:, hidden, :, :] .= Inf
        steps = sparse_steps(q, k, v, pattern; scale = 0.7, causal = causal)
        want = sdpa_steps(q, k, v; scale = 0.7, mask = Mask(keep = table))
        @test near(steps.output, want.output) && near(steps.lse, want.lse)
        @test same(steps.visited, Int64.(vec(sum(table; dims = 1))))
    end
    alone = sparse_steps(ones(T, 1, 3, 1, 1), ones(T, 1, 1, 1, 1), ones(T, 1, 1, 1, 1), Window(0, 0))
    @test alone.output[:] == T[1, 0, 0] && alone.lse[2] == -Inf && alone.visited == [1, 0, 0]
    nobody = (ones(T, 2, 3, 2, 0), ones(T, 2, 4, 1, 0), ones(T, 5, 4, 1, 0))
    @test size(sparse(nobody..., Strided(2))) == (5, 3, 2, 0)
end

@testset "codes of sparse" begin
    code(pattern; options...) = code_of(() -> sparse(Q, K, V, pattern; options...))
    @test code(Window(1, 1)) == :none
    wrong = [
        5,
        nothing,
        Window(-1, 0),
        Window(0.5, 0),
        Window(nothing, 0),
        Dilated(1, 1, 0),
        Strided(0),
        Strided("2"),
        Fixed(2, 3),
        Fixed(2, -1),
        Fixed(0, 0),
        Global(1, 1, nothing),
        Global(1, 1, [-1]),
        Global(1, 1, [0.5]),
        BigBird(0, 1, 1, 1, 0),
        BigBird(1, 1, 1, -1, 0),
        BigBird(1, 1, 1, 1, -1),
        Blocks(0, trues(1, 1)),
    ]
    @test all(pattern -> code(pattern) == :invalid_config, wrong)
    @test code(Blocks(2, trues(3, 2))) == :none && code(Blocks(2, trues(2, 3))) == :shape_mismatch
    @test code(Blocks(2, ones(3, 2))) == code(Blocks(2, nothing)) == :dtype_mismatch
    @test code(Strided(1); causal = 1) == code(Strided(1); scale = NaN) == :invalid_config
    @test code_of(() -> sparse(Q, K, V[:, :, :, 1], Strided(1))) == :shape_mismatch
    @test code_of(() -> sparse_mask(Window(0, -1), 2, 2)) == :invalid_config
end
