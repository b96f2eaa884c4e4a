# A layer with random weights of the sizes given.
function latent_layer(rng, T, C, R, H, Dn, Dr, Dv; Rq = nothing, normed = false, more...)
    random(dims...) = randn(rng, T, dims...) ./ 2
    return MultiHeadLatentAttention(;
        w_dq = Rq === nothing ? nothing : random(C, Rq),
        q_norm = Rq !== nothing && normed ? random(Rq) : nothing,
        w_q = random(something(Rq, C), H * (Dn + Dr)),
        w_dkv = random(C, R),
        kv_norm = normed ? random(R) : nothing,
        w_kr = random(C, Dr),
        w_uk = random(R, H * Dn),
        w_uv = random(R, H * Dv),
        w_o = random(H * Dv, C),
        num_heads = H,
        more...,
    )
end

@testset "mla $T" for T in (Float64,)
    rng = MersenneTwister(33)
    kinds = ((nothing, false, false), (3, true, true), (3, false, true), (nothing, true, false))
    for (Rq, normed, causal) in kinds
        rope_options = Rope(base = 100, interleaved = true)
        layer = latent_layer(rng, T, 6, 5, 2, 3, 4, 2; Rq = Rq, normed = normed, rope = rope_options)
        x = randn(rng, T, 6, 4, 2)
        options = (causal = causal, kv_lengths = Int64[4, 2], scale = rand(rng, Any[nothing, 0.3]))
        plain, absorbed = mla_steps(layer, x; options...), mla_absorbed(layer, x; options...)
        for name in keys(plain)
            @test near(absorbed[name], plain[name])
        end
        @test same(layer(x; options...), plain.output)

        # the same as its parts: keys and values expanded, one head at a time
        norm(y, w) = w === nothing ? y : rms_norm(y, w; eps = 1e-6)
        project(w, y) = reshape(w' * reshape(y, size(y, 1), :), :, 4, 2)
        turn(y) = rope(reshape(y, size(y, 1), 4, 1, 2), layer.rope)
        c = norm(project(layer.w_dkv, x), layer.kv_norm)
        source = Rq === nothing ? x : norm(project(layer.w_dq, x), layer.q_norm)
        @test near(plain.latent, c) && near(plain.rope_key, turn(project(layer.w_kr, x))[:, :, 1, :])
        for h in 1:2
            q = project(layer.w_q, source)[(h-1)*7+1:h*7, :, :]
            q = cat(reshape(q[1:3, :, :], 3, 4, 1, 2), turn(q[4:7, :, :]); dims = 1)
            k_n, v = project(layer.w_uk, c)[(h-1)*3+1:h*3, :, :], project(layer.w_uv, c)[(h-1)*2+1:h*2, :, :]
            k = cat(reshape(k_n, 3, 4, 1, 2), turn(project(layer.w_kr, x)); dims = 1)
            mask = Mask(causal = causal, kv_lengths = Int64[4, 2])
            head = sdpa_steps(q, k, reshape(v, 2, 4, 1, 2); mask = mask, scale = options.scale)
            @test near(plain.weights[:, :, h, :], head.weights[:, :, 1, :])
            @test near(plain.lse[:, h, :], head.lse[:, 1, :])
        end
    end
    layer = latent_layer(rng, T, 6, 5, 2, 3, 4, 2)
    for form in (mla_steps, mla_absorbed)
        @test size(form(layer, zeros(T, 6, 0, 2)).output) == (6, 0, 2)
        @test size(form(layer, zeros(T, 6, 3, 0)).output) == (6, 3, 0)
        empty = form(layer, ones(T, 6, 3, 1); kv_lengths = Int64[0])
        @test all(iszero, empty.output) && all(==(-Inf), empty.lse)
    end
end

@testset "codes of mla" begin
    rng = MersenneTwister(34)
    layer, x = latent_layer(rng, Float64, 6, 5, 2, 3, 4, 2; Rq = 3, normed = true), zeros(6, 4, 2)
    fields = NamedTuple{fieldnames(MultiHeadLatentAttention)}(ntuple(n -> getfield(layer, n), 12))
    function code(x = x; causal = false, kv_lengths = nothing, scale = nothing, changed...)
        other = MultiHeadLatentAttention(; merge(fields, (; changed...))...)
        options = (causal = causal, kv_lengths = kv_lengths, scale = scale)
        codes = [code_of(() -> form(other, x; options...)) for form in (mla_steps, mla_absorbed)]
        @test codes[1] == codes[2]
        return codes[1]
    end
    @test code() == :none
    for num_heads in (0, 1.5, nothing, "2")
        @test code(num_heads = num_heads) == :invalid_config
    end
    @test code(rope = 5) == :invalid_config
    @test code(eps = -1) == :invalid_config
    @test code(scale = Inf) == :invalid_config
    @test code(causal = 1) == :invalid_config
    @test code(w_dq = nothing, w_q = zeros(6, 14)) == :invalid_config
    @test code(rope = Rope(rotary_dim = 3)) == code(kv_lengths = Int64[5, 1]) == :invalid_config
    sizes = (
        w_q = zeros(3, 13),
        w_dq = zeros(5, 3),
        w_dkv = zeros(5, 5),
        w_kr = zeros(6, 3),
        w_uk = zeros(4, 6),
        w_uv = zeros(5, 3),
    )
    for name in keys(sizes)
        @test code(; (name => sizes[name],)...) == :shape_mismatch
    end
    @test code(w_o = zeros(3, 6)) == :shape_mismatch
    @test code(q_norm = zeros(2)) == :shape_mismatch
    @test code(kv_norm = zeros(4)) == :shape_mismatch
    @test code(zeros(6, 4)) == :shape_mismatch
    @test code(Float32.(x)) == :dtype_mismatch
    @test code(w_uk = zeros(Float32, 5, 6)) == :dtype_mismatch
    @test code(kv_lengths = [1.0, 2.0]) == :dtype_mismatch
end
