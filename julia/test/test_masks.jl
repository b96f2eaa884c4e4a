# The definition, slot by slot, with positions counted from 0.
function is_visible(mask::Mask, j, i, h, b, Tk)
    offset = mask.q_offset === nothing ? 0 : mask.q_offset isa Integer ? mask.q_offset : mask.q_offset[b]
    p, t = (i - 1) + offset, j - 1
    left, right = mask.window === nothing ? (nothing, nothing) : mask.window
    mask.causal && t > p && return false
    left !== nothing && t < p - left && return false
    right !== nothing && t > p + right && return false
    mask.kv_lengths !== nothing && t >= mask.kv_lengths[b] && return false
    return mask.keep === nothing || mask.keep[j, i, h, b]
end

@testset "masks" begin
    rows(mask, Tk, Tq) = [findall(visible(mask, Tk, Tq, 1, 1)[:, i, 1, 1]) .- 1 for i in 1:Tq]

    @testset "by hand" begin
        @test rows(Mask(), 2, 2) == [[0, 1], [0, 1]]
        @test rows(Mask(causal = true), 4, 2) == [[0], [0, 1]]  # top-left unless an offset is given
        @test rows(Mask(causal = true, q_offset = 2), 4, 2) == [[0, 1, 2], [0, 1, 2, 3]]
        @test rows(Mask(causal = true, q_offset = -2), 2, 4) == [[], [], [0], [0, 1]]
        @test rows(Mask(causal = true, window = (1, nothing)), 4, 4) == [[0], [0, 1], [1, 2], [2, 3]]
        @test rows(Mask(window = (0, 0)), 3, 3) == [[0], [1], [2]]
        @test rows(Mask(window = (1, 0)), 3, 3) == [[0], [0, 1], [1, 2]]  # a window needs no causal
        @test rows(Mask(window = (nothing, 1)), 3, 3) == [[0, 1], [0, 1, 2], [0, 1, 2]]
        @test rows(Mask(window = (typemax(Int), typemax(Int)), q_offset = 1), 2, 2) == [[0, 1], [0, 1]]
        @test rows(Mask(kv_lengths = Int64[1]), 3, 1) == [[0]]
        @test rows(Mask(keep = [true false; false true]), 2, 2) == [[0], [1]]
    end

    @testset "dimensions align on the left" begin
        keys_only = [true, false, true]  # (Tk,)
        @test visible(Mask(keep = keys_only), 3, 2, 2, 2)[:, 2, 1, 2] == keys_only
        heads = reshape([true, false], 1, 1, 2)  # (1, 1, Hq)
        @test visible(Mask(keep = heads), 3, 2, 2, 2) == (visible(Mask(), 3, 2, 2, 2) .& heads)
        @test !any(visible(Mask(keep = fill(false)), 3, 2, 2, 2))
    end

    @testset "every combination against the definition" begin
        rng = MersenneTwister(2)
        for _ in 1:200
            Tk, Tq, Hq, B = (rand(rng, 0:4) for _ in 1:4)
            mask = random_mask(rng, Tk, Tq, Hq, B)
            want = Bool[is_visible(mask, j, i, h, b, Tk) for j in 1:Tk, i in 1:Tq, h in 1:Hq, b in 1:B]
            @test visible(mask, Tk, Tq, Hq, B) == want
        end
    end

    @inferred visible(Mask(causal = true, window = (1, nothing)), 3, 3, 1, 1)
end
