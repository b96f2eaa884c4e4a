# The definition of linear attention, key by key, for one query.
function summed(q, k, v, i, last_key, state, norm)
    f(x) = x > 0 ? x + 1 : exp(x)
    numerator, denominator = state * f.(q[:, i]), sum(norm .* f.(q[:, i]))
    for j in 1:last_key
        similarity = sum(f.(q[:, i]) .* f.(k[:, j]))
        numerator += similarity .* v[:, j]
        denominator += similarity
    end
    return numerator ./ denominator
end

by_twos(q, k, v; options...) = linear_chunked(q, k, v; chunk = 2, options...)
const FORMS_OF_LINEAR = (linear_attention, linear_recurrent, by_twos)

@testset "linear attention $T" for T in FLOATS
    rng = MersenneTwister(26)
    for causal in (false, true), with_state in (false, true)
        q, k, v = randn(rng, T, 3, 5, 4, 2), randn(rng, T, 3, 5, 2, 2), randn(rng, T, 2, 5, 2, 2)
        state, norm = randn(rng, T, 2, 3, 2, 2), rand(rng, T, 3, 2, 2)
        options = with_state ? (causal = causal, state = state, norm = norm) : (causal = causal,)
        before = with_state ? (state, norm) : (zero(state), zero(norm))
        results = [form(q, k, v; options...) for form in FORMS_OF_LINEAR]
        want = similar(results[1].output)
        for b in 1:2, h in 1:4, i in 1:5
            g = fld1(h, 2)
            one = (q[:, :, h, b], k[:, :, g, b], v[:, :, g, b])
            want[:, i, h, b] = summed(one..., i, causal ? i : 5, before[1][:, :, g, b], before[2][:, g, b])
        end
        for result in results
            @test near(result.output, want)
            @test near(result.state, results[1].state)
            @test near(result.norm, results[1].norm)
        end

        # in two parts, the state carried over, it is the same when causal
        causal || continue
        for form in FORMS_OF_LINEAR
            parts(rows) = (q[:, rows, :, :], k[:, rows, :, :], v[:, rows, :, :])
            first = form(parts(1:2)...; options...)
            second = form(parts(3:5)...; causal = true, state = first.state, norm = first.norm)
            @test near(cat(first.output, second.output; dims = 2), want)
            @test near(second.state, results[1].state)
        end
    end

    @testset "edges" begin
        for form in FORMS_OF_LINEAR
            empty = form(ones(T, 2, 3, 1, 1), ones(T, 2, 0, 1, 1), ones(T, 4, 0, 1, 1))
            @test same(empty.output, zeros(T, 4, 3, 1, 1)) && same(empty.state, zeros(T, 4, 2, 1, 1))
            silent = form(ones(T, 2, 0, 1, 1), zeros(T, 2, 3, 1, 1), ones(T, 4, 3, 1, 1))
            @test size(silent.output) == (4, 0, 1, 1)
            @test same(silent.state, fill(T(3), 4, 2, 1, 1))
            @test same(silent.norm, fill(T(3), 2, 1, 1))
            v = fill(T(NaN), 1, 3, 1, 1)
            v[1:2] .= (1, 3)
            flat = zeros(T, 1, 3, 1, 1)
            later = form(flat, flat, v; causal = true)  # NaN in the last key alone
            @test later.output[1:2] == T[1, 2] && isnan(later.output[3]) && isnan(later.state[])
            given = ones(T, 1, 1, 1, 1)
            form(given, given, given; state = given, norm = ones(T, 1, 1, 1))
            @test given[] == 1
        end
    end
end

@testset "gated linear $T" for T in FLOATS
    rng = MersenneTwister(27)
    B, G, Hkv, D, Dv, len = 2, 2, 2, 3, 4, 5
    q, k, v = randn(rng, T, D, len, G * Hkv, B), randn(rng, T, D, len, Hkv, B), randn(rng, T, Dv, len, Hkv, B)
    decays = (-rand(rng, T, D, len, Hkv, B), -rand(rng, T, 1, len, Hkv, B))
    betas = (rand(rng, T, 1, len, Hkv, B), rand(rng, T, 1, len, 1, B))
    state = randn(rng, T, Dv, D, Hkv, B)
    for (rule, decay, beta) in (
        ("linear", nothing, nothing), ("gated", decays[1], nothing), ("gated", decays[2], nothing),
        ("delta", nothing, betas[1]), ("delta", nothing, betas[2]), ("gated_delta", decays[1], betas[2]),
    )
        options = (rule = rule, decay = decay, beta = beta)
        result = gated_linear(q, k, v; options..., state = state)
        for b in 1:B, g in 1:Hkv
            S = Matrix{T}(I, Dv, Dv) * state[:, :, g, b]
            for t in 1:len
                decay === nothing || (S = S .* exp.(decay[:, t, g, b])')
                value = v[:, t, g, b]
                if beta !== nothing
                    value = beta[1, t, min(g, size(beta, 3)), b] .* (value - S * k[:, t, g, b])
                end
                S += value * k[:, t, g, b]'
                for h in (g-1)*G+1:g*G
                    @test near(result.output[:, t, h, b], S * (q[:, t, h, b] ./ sqrt(T(D))))
                end
            end
            @test near(result.state[:, :, g, b], S)
        end
        cut(x, rows) = x === nothing ? nothing : x[:, rows, :, :]
        halves = [(rule = rule, decay = cut(decay, rows), beta = cut(beta, rows)) for rows in (1:2, 3:len)]
        one = gated_linear(cut(q, 1:2), cut(k, 1:2), cut(v, 1:2); halves[1]..., state = state)
        two = gated_linear(cut(q, 3:len), cut(k, 3:len), cut(v, 3:len); halves[2]..., state = one.state)
        @test same(cat(one.output, two.output; dims = 2), result.output) && same(two.state, result.state)
    end
    forgotten = gated_linear(q, k, v; rule = "gated", decay = fill(T(-Inf), 1, len, Hkv, B), scale = 1)
    @test near(forgotten.state[:, :, 1, 1], v[:, end, 1, 1] * k[:, end, 1, 1]')
    @test all(iszero, gated_linear(q, k, v; scale = 0).output)
    none = gated_linear(q[:, 1:0, :, :], k[:, 1:0, :, :], v[:, 1:0, :, :]; state = state)
    @test same(none.state, state) && size(none.output) == (Dv, 0, G * Hkv, B)
end

@testset "codes of the linear family" begin
    q, k, v = zeros(2, 3, 2, 1), zeros(2, 3, 1, 1), zeros(4, 3, 1, 1)
    state, norm = zeros(4, 2, 1, 1), zeros(2, 1, 1)
    for form in FORMS_OF_LINEAR
        code(q = q, k = k, v = v; options...) = code_of(() -> form(q, k, v; options...))
        @test code() == code(; state = state, norm = norm) == :none
        @test code(; state = state) == code(; norm = norm) == code(; causal = 1) == :invalid_config
        @test code(q[:, 1:2, :, :]; causal = true) == code(; state = norm, norm = norm) == :shape_mismatch
        @test code(; state = Float32.(state), norm = norm) == code(q, Float32.(k)) == :dtype_mismatch
        @test code(zeros(3, 3, 2, 1)) == code(zeros(2, 3, 2, 2)) == :shape_mismatch
    end
    @test code_of(() -> linear_chunked(q, k, v; chunk = 0)) == :invalid_config
    code(; options...) = code_of(() -> gated_linear(q, k, v; options...))
    decay, beta = zeros(1, 3, 1, 1), zeros(1, 3, 1, 1)
    @test code() == code(; rule = "gated_delta", decay = decay, beta = beta) == :none
    for rule in ("x", 1, "gated", "delta", nothing)
        @test code(; rule = rule) == :invalid_config
    end
    @test code(; decay = decay) == code(; beta = beta) == code(; scale = Inf) == :invalid_config
    @test code(; rule = "gated", decay = zeros(1, 2, 1, 1)) == :shape_mismatch
    @test code(; rule = "delta", beta = zeros(2, 3, 1, 1)) == :shape_mismatch
    @test code(; rule = "gated", decay = Float32.(decay)) == :dtype_mismatch
    @test code(; state = norm) == :shape_mismatch
    @test code_of(() -> gated_linear(q, k[:, 1:2, :, :], v[:, 1:2, :, :])) == :shape_mismatch
end
