# The fast rungs are sdpa: at every length of register, in tiles and in their tails, whatever is hidden.

const LANES = (4, 8, 16)

with_lanes(call, lanes) = withenv(call, "ROSETTA_SIMD_LANES" => string(lanes))

# Two ways to the same numbers, as `near`, for longer sums: a score is a chain of D + 2 roundings, softcap and
# exponential err by 5, and the sums over the keys by Tk each; half an eps a rounding, and both ways err.
function near_sums(a, b, D, Tk)
    limit = (2 * D + 2 * Tk + 16) * eps(eltype(a))
    return size(a) == size(b) && isapprox(a, b; rtol = limit, atol = limit, nans = true)
end
near_state(state, want, D, Tk) =
    near_sums(state.output, want.output, D, Tk) && near_sums(state.lse, want.lse, D, Tk)

# Every rung, by name: what it gives for a call.
function fast_states(q, k, v; options...)
    states = Any["blocked" => blocked(q, k, v; options...)]
    for lanes in LANES
        push!(states, "simd $lanes" => with_lanes(() -> simd(q, k, v; options...), lanes))
    end
    return states
end

# Sizes that leave tails everywhere: of lanes, of registers in a tile, of blocks of keys, of channels; few
# rows, one row, and none.
const TAILS = [  # D, Dv, Tq, Tk, G, Hkv, B
    (1, 1, 1, 1, 1, 1, 1),
    (5, 3, 70, 9, 1, 2, 1),
    (16, 20, 33, 300, 2, 1, 2),
    (35, 33, 1, 290, 5, 2, 1),
    (32, 64, 2, 67, 4, 1, 1),
    (7, 1, 19, 3, 1, 1, 2),
    (4, 0, 3, 5, 1, 1, 1),
    (4, 3, 20, 0, 1, 1, 1),
    (4, 3, 0, 5, 1, 2, 1),
    (4, 3, 5, 5, 1, 1, 0),
]

@testset "exponential" begin
    for (N, T) in RosettaAttention.REGISTERS
        V = RosettaAttention.Register{N,T}
        function each(x)
            y = copy(x)
            GC.@preserve y for n in 0:N:length(y)-N
                place = pointer(y) + n * sizeof(T)
                RosettaAttention.vstore(place, RosettaAttention.exp_of(RosettaAttention.vload(V, place)))
            end
            return y
        end
        x = T[log(floatmin(T)) * n / 2^10 for n in 0:2^10-1]
        exact = T === Float32 ? exp.(Float64.(x)) : exp.(big.(x))
        for y in (each(x), RosettaAttention.exp_of.(x))
            @test maximum(abs.(y .- exact) ./ exact) <= 4 * eps(T) / 2  # derived in simd_exp.jl
        end
        special = repeat(T[0, -0.0, -Inf, NaN, -1e30, -800, 2log(floatmin(T)), -1e-30], 2)
        for y in (each(special), RosettaAttention.exp_of.(special))
            @test isequal(y, repeat(T[1, 1, 0, NaN, 0, 0, 0, 1], 2))
        end
    end
end

@testset "fast rungs are sdpa, $T" for T in FLOATS
    rng = MersenneTwister(61)
    for (D, Dv, Tq, Tk, G, Hkv, B) in TAILS, round in 1:4
        q = randn(rng, T, D, Tq, G * Hkv, B)
        k, v = randn(rng, T, D, Tk, Hkv, B), randn(rng, T, Dv, Tk, Hkv, B)
        bias = ifelse.(rand(rng, Tk, 1, G * Hkv) .< 0.2, T(-Inf), randn(rng, T, Tk, 1, G * Hkv))
        options = (
            mask = round == 1 ? Mask() : random_mask(rng, Tk, Tq, G * Hkv, B),
            bias = round == 3 ? bias : nothing,
            softcap = round == 4 ? 1.5 : nothing,
            sinks = round == 2 ? randn(rng, T, G * Hkv) : nothing,
        )
        want = sdpa_steps(q, k, v; options...)
        for (name, state) in fast_states(q, k, v; options...)
            good = near_state(state, want, D, Tk)
            good || println((name, D, Dv, Tq, Tk, G, Hkv, B, round))
            @test good
        end
    end

    @testset "hidden slots" begin
        # Poison in keys and values that only some rows of a tile see, and in those that none does.
        Tq = Tk = 80
        q, k, v = randn(rng, T, 8, Tq, 2, 1), randn(rng, T, 8, Tk, 1, 1), randn(rng, T, 6, Tk, 1, 1)
        for from in (2, 41, 80), poison in (T(NaN), T(Inf)), few in (false, true)
            bad_k, bad_v = copy(k), copy(v)
            bad_k[:, from:end, :, :] .= poison
            bad_v[:, from:end, :, :] .= poison
            rows = few ? (from-1:from) : (1:Tq)
            some = q[:, rows, :, :]
            mask = Mask(causal = true, q_offset = first(rows) - 1)
            clean, poisoned = (fast_states(some, x...; mask = mask) for x in ((k, v), (bad_k, bad_v)))
            for ((name, state), (_, spoilt)) in zip(clean, poisoned)
                seen = rows .< from
                # What is hidden is passed over one by one, so that BLAS's sums run in another order.
                equal = name == "blocked" ? near : same
                @test equal(spoilt.output[:, seen, :, :], state.output[:, seen, :, :])
                @test same(spoilt.lse[seen, :, :], state.lse[seen, :, :])
                @test isinf(poison) || all(isnan, spoilt.output[:, .!seen, :, :])
            end
        end
        # One value is poisoned, and a mask hides its key from some rows only.
        keep = rand(rng, Tk, Tq) .< 0.5
        v[3, 50, 1, 1] = NaN
        for (name, state) in fast_states(q, k, v; mask = Mask(keep = keep))
            @test isnan.(state.output[3, :, 1, 1]) == keep[50, :]
            @test !any(isnan, state.output[[1, 2, 4, 5, 6], :, :, :]) && !any(isnan, state.lse)
        end
        # A score of -Inf is hidden though no mask says so, and one of +Inf makes its row NaN.
        q, k, v = score_form(T, [-Inf, 0, 1], [NaN, 3, 6])
        for (name, state) in fast_states(q, k, v; scale = 1)
            @test near(state.output[:], T[(3 + 6 * exp(1)) / (1 + exp(1))])
        end
        for poison in (T(Inf), T(NaN))
            k[1] = poison
            for (name, state) in fast_states(q, k, v; scale = 1)
                @test all(isnan, state.output) && all(isnan, state.lse)
            end
        end
        # Nothing to see: 0 and -Inf, or the sink.
        nothing_seen = Mask(kv_lengths = Int64[0])
        for (sinks, lse) in ((nothing, T(-Inf)), (T[0.7], T(0.7))), queries in (1, 40)
            q, k, v = score_form(T, [1, 2], [3, NaN]; queries = queries)
            for (name, state) in fast_states(q, k, v; mask = nothing_seen, sinks = sinks)
                @test all(x -> x === T(0), state.output) && all(x -> x === lse, state.lse)
            end
        end
    end

    @testset "edges of tiles" begin
        # More tiles than a wave has, and at their edges every number of registers, from either side; the rows
        # of two heads in one tile.
        edges = (
            (530, 530, 1, nothing, 0, 0),
            (70, 300, 3, 40, 5, 200),
            (75, 90, 2, 3, 20, -30),
            (40, 600, 1, 280, 0, 520),
        )
        for (Tq, Tk, G, left, right, offset) in edges
            q = randn(rng, T, 5, Tq, G, 1)
            k, v = randn(rng, T, 5, Tk, 1, 1), randn(rng, T, 3, Tk, 1, 1)
            mask = Mask(window = (left, right), q_offset = offset)
            want = sdpa_steps(q, k, v; mask = mask)
            for (name, state) in fast_states(q, k, v; mask = mask)
                @test near_state(state, want, 5, Tk)
            end
            table = visible(mask, Tk, Tq, G, 1)
            for poison in (T(NaN), T(Inf))
                bad_k, bad_v = copy(k), copy(v)
                bad_k[:, Tk÷2, :, :] .= poison
                bad_v[:, Tk÷2, :, :] .= poison
                blind = vec(.!table[Tk÷2, :, :, 1])
                columns(x) = reshape(x, :, Tq * G)[:, blind]
                for lanes in LANES
                    clean, spoilt = (with_lanes(() -> simd(q, x, y; mask = mask), lanes) for
                                     (x, y) in ((k, v), (bad_k, bad_v)))
                    @test same(columns(spoilt.output), columns(clean.output))
                    @test same(columns(spoilt.lse), columns(clean.lse))
                end
            end
        end
    end

    @testset "a call after others" begin
        # Buffers are used again: whatever was in them, and on whatever sizes.
        q, k, v = randn(rng, T, 6, 90, 1, 1), randn(rng, T, 6, 70, 1, 1), randn(rng, T, 4, 70, 1, 1)
        first_state = simd(q, k, v)
        simd(q, fill!(copy(k), T(NaN)), fill!(copy(v), T(NaN)))
        simd(q[:, 1:20, :, :], k, v)
        state = simd(q, k, v)
        @test same(state.output, first_state.output) && same(state.lse, first_state.lse)
    end

    @testset "views" begin
        wide_q, wide_k = randn(rng, T, 9, 40, 2, 2), randn(rng, T, 9, 60, 2, 2)
        views = [
            (view(x, 2:8, 1:2:size(x, 2), :, :) for x in (wide_q, wide_k, wide_k)),
            (view(x, 1:2:9, :, 2:-1:1, :) for x in (wide_q, wide_k, wide_k)),
            (PermutedDimsArray(permutedims(x, (1, 3, 2, 4)), (1, 3, 2, 4)) for x in (wide_q, wide_k, wide_k)),
        ]
        for heads in views
            q, k, v = heads
            copies = fast_states(Array(q), Array(k), Array(v))
            for ((_, state), (_, want)) in zip(fast_states(q, k, v), copies)
                @test same(state.output, want.output) && same(state.lse, want.lse)
            end
        end
    end

    @testset "keys with positions of their own" begin
        q, k, v = (randn(rng, T, 5, 12, 1, 1) for _ in 1:3)
        mask = Mask(causal = true, window = (4, nothing), kv_positions = reshape(Int64[11:-1:0;], 12, 1))
        want = sdpa_steps(q, k, v; mask = mask)
        for (name, state) in fast_states(q, k, v; mask = mask)
            @test near_state(state, want, 5, 12)
        end
    end

    @testset "any number of tasks gives the same bits" begin
        for (Tq, G) in ((150, 1), (1, 4))
            q, k, v = randn(rng, T, 8, Tq, 3G, 2), randn(rng, T, 8, 300, 3, 2), randn(rng, T, 8, 300, 3, 2)
            mask = Mask(causal = true, q_offset = 300 - Tq)
            alone = simd(q, k, v; mask = mask)
            for tasks in (2, 3, 100)
                shared = simd(q, k, v; mask = mask, tasks = tasks)
                @test same(shared.output, alone.output) && same(shared.lse, alone.lse)
            end
        end
    end
end

@testset "codes of the fast rungs" begin
    @test RosettaAttention.native_lanes() in LANES
    for rung in (simd, blocked)
        @test code_of(() -> rung(Q, K, V)) == :none
        @test code_of(() -> rung(Q, K[:, :, :, 1:1], V)) == :shape_mismatch
        @test code_of(() -> rung(Q, Float32.(K), V)) == :dtype_mismatch
        @test code_of(() -> rung(Q, K, V; softcap = 0)) == :invalid_config
        @test code_of(() -> rung(big.(Q), big.(K), big.(V))) == :unsupported
    end
    for bad in (0, -1, 1.5, "x", nothing, true)
        @test code_of(() -> simd(Q, K, V; tasks = bad)) == :invalid_config
    end
    for bad in ("5", "x", "32")
        @test code_of(() -> with_lanes(() -> simd(Q, K, V), bad)) == :invalid_config
    end
end
