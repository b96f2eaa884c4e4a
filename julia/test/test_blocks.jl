@testset "norms $T" for T in FLOATS
    rng = MersenneTwister(31)
    steps = layer_norm_steps(T[1, 2, 3, 6], T[1, 1, 2, 2], T[0, 1, 0, 1]; eps = 0.5)
    @test steps.mean[] === T(3) && near(steps.inv_std, fill(T(0.5)))
    @test near(steps.output, T[-1, 0.5, 0, 4])
    @test near(rms_norm(T[1, -7], T[1, 2]; eps = 0), T[0.2, -2.8])
    @test near(rms_norm(T[3, 4]; eps = 12), T[3, 4] ./ T(sqrt(24.5)))
    x = randn(rng, T, 5, 3, 2) .* 10 .+ 3
    @test near(sum(layer_norm(x); dims = 1), zeros(T, 1, 3, 2))
    @test near(sum(abs2, rms_norm(x; eps = 0); dims = 1), fill(T(5), 1, 3, 2))
    whole = T.(rand(rng, -20:20, 4, 3, 2))  # sums, and a fourth of them, are exact: a shift changes no bit
    @test same(layer_norm(whole .+ 7), layer_norm(whole))
    @test near(layer_norm(T[1e4 + 1, 1e4 + 2, 1e4 + 3]; eps = 0), T[-sqrt(1.5), 0, sqrt(1.5)])  # two passes
    @test same(layer_norm(fill(T(7), 1, 2)), zeros(T, 1, 2)) && all(isnan, rms_norm(zeros(T, 2); eps = 0))
    dirty = copy(x)
    dirty[1, 2, 1] = NaN
    @test same(layer_norm(dirty)[:, [1, 3], 1], layer_norm(x)[:, [1, 3], 1])
    @test all(isnan, layer_norm(dirty)[:, 2, 1])
    @test size(rms_norm(zeros(T, 3, 0))) == (3, 0) && size(layer_norm_steps(zeros(T, 3, 0, 2)).mean) == (0, 2)
    @test same(rms_norm(view(x, :, 3:-1:1, :)), rms_norm(x[:, 3:-1:1, :]))
end

@testset "activations $T" for T in FLOATS
    # Φ(1) and Φ(-3) of the normal distribution
    @test near(gelu(T[0, 1, -3]), T[0, 0.841344746068542949, -3 * 0.00134989803163009453])
    @test near(gelu(T[1, -1]; approximate = "tanh"), T[0.841191990608276, -0.158808009391724])
    @test same(gelu(T[Inf]), T[Inf]) && isnan(gelu(T[-Inf])[]) && isnan(gelu(T[NaN])[])
    @test near(swiglu(T[1, -1, 0], T[2, 3, 4]), T[2 / (1 + exp(-1)), -3 / (1 + exp(1)), 0])
    @test near(swiglu(T[1], T[1]; alpha = 1.702), T[1 / (1 + exp(-1.702))]) && swiglu(T[-1000], T[1])[] == 0
    @test size(gelu(zeros(T, 0, 2))) == (0, 2) && same(gelu(fill(T(0))), fill(T(0)))
end

@testset "erf" begin
    # To 17 digits, from its series in 256 bits.
    function series(x)
        term, total, n = big(x), big(x), 0
        while abs(term) > 1e-60
            n += 1
            term *= -big(x)^2 / n
            total += term / (2n + 1)
        end
        return Float64(2 / sqrt(big(π)) * total)
    end
    @test all(abs(RosettaAttention.erf(x) - series(x)) <= 2 * eps(series(x)) for x in 0.01:0.0937:5.9)
    @test RosettaAttention.erf(-0.5) == -RosettaAttention.erf(0.5) && RosettaAttention.erf(Inf) == 1
end

@testset "feed-forward and blocks $T" for T in (Float64,)
    rng = MersenneTwister(32)
    random(dims...) = randn(rng, T, dims...) ./ 2
    x, context = random(4, 3, 2), random(5, 6, 2)
    w_1, w_2, w_3, b_1, b_2, b_3 = random(4, 6), random(6, 4), random(4, 6), random(6), random(4), random(6)
    apply(w, b, x) = reshape(w' * reshape(x, size(x, 1), :) .+ b, :, size(x, 2), size(x, 3))
    inner = apply(w_1, b_1, x)
    acts = ("gelu" => gelu, "gelu_tanh" => x -> gelu(x; approximate = "tanh"), "relu" => x -> max.(x, 0))
    for (name, act) in acts
        layer = FeedForward(w_1, w_2; b_1 = b_1, b_2 = b_2, activation = name)
        @test near(layer(x), apply(w_2, b_2, act(inner)))
    end
    ff = FeedForward(w_1, w_2; w_3 = w_3, b_1 = b_1, b_2 = b_2, b_3 = b_3, activation = "swiglu")
    @test near(ff(x), apply(w_2, b_2, swiglu(inner, apply(w_3, b_3, x))))

    weights = [random(4, 4) for _ in 1:4]
    attention = MultiHeadAttention(weights...; num_heads = 2, rope = Rope(), q_norm = random(2))
    cross = MultiHeadAttention(random(4, 4), random(5, 4), random(5, 4), random(4, 4); num_heads = 4)
    norms = [Norm(random(4)), Norm(random(4), random(4)), Norm(random(4); kind = "rms")]
    @test near(norms[2](x), layer_norm(x, norms[2].weight, norms[2].bias))
    @test near(norms[3](x), rms_norm(x, norms[3].weight))
    mask, context_mask = Mask(causal = true, kv_lengths = Int64[2, 3]), Mask(kv_lengths = Int64[0, 4])
    parts = (y -> attention(y; mask = mask), y -> cross(y, context; mask = context_mask), ff)
    options = (causal = true, kv_lengths = Int64[2, 3], context_lengths = Int64[0, 4])
    for norm_first in (true, false)
        block, want = Block(attention, ff, norms; cross = cross, norm_first = norm_first), x
        for (part, norm) in zip(parts, norms)
            want = norm_first ? want + part(norm(want)) : norm(want + part(want))
        end
        @test near(block(x, context; options...), want)
    end
    plain = Block(attention, ff, norms[[1, 3]])
    y = x + attention(norms[1](x))
    @test near(plain(x), y + ff(norms[3](y)))
    @test size(plain(x[:, 1:0, :])) == (4, 0, 2) && size(plain(x[:, :, 1:0])) == (4, 3, 0)

    @testset "transformer" begin
        embedding, places, kinds, last_table = random(4, 7), random(4, 5), random(4, 2), random(4, 7)
        tokens, segments = Int64[0 6; 3 3; 5 0], Int64[0 1; 1 1; 0 0]
        tables = (position_embedding = places, segment_embedding = kinds, unembedding = last_table)
        ends = (embedding_norm = norms[1], final_norm = norms[2])
        model = Transformer(embedding, [plain, plain]; tables..., ends...)
        steps = transformer_steps(model, tokens; segments = segments, causal = true, kv_lengths = Int64[2, 3])
        embedded(c, t, b) = embedding[c, tokens[t, b]+1] + places[c, t] + kinds[c, segments[t, b]+1]
        y = [embedded(c, t, b) for c in 1:4, t in 1:3, b in 1:2]
        y = norms[1](y)
        for _ in 1:2
            y = plain(y; causal = true, kv_lengths = Int64[2, 3])
        end
        @test near(steps.output, norms[2](y))
        @test near(steps.logits, apply(last_table, zeros(T, 7), steps.output))
        small = Transformer(embedding, Block[])
        @test small(tokens) == embedding[:, tokens .+ 1]
        @test near(transformer_steps(small, tokens).logits, apply(embedding, zeros(T, 7), small(tokens)))
        @test size(small(zeros(Int64, 0, 2))) == (4, 0, 2)
    end
end

@testset "cache_write" begin
    cache = reshape(collect(1.0:12), 1, 4, 3)
    update = -reshape(collect(1.0:6), 1, 2, 3)
    @test cache_write(cache, update)[1, :, 2] == [-3, -4, 7, 8]
    @test cache_write(cache, update, Int64[0, 1, 2])[1, :, :] == [-1 5 9; -2 -3 10; 3 -4 -5; 4 8 -6]
    circular = cache_write(cache, update, Int64[3, 4, 2^62]; circular = true)
    @test circular[1, :, :] == [-2 -3 -5; 2 -4 -6; 3 7 11; -1 8 12]
    @test cache[1] == 1 && size(cache_write(zeros(2, 3, 4, 0), zeros(2, 1, 4, 0))) == (2, 3, 4, 0)
    @test same(cache_write(zeros(2, 0, 1), zeros(2, 0, 1), Int64[0]), zeros(2, 0, 1))
    @test same(cache_write(zeros(2, 3, 0, 1), zeros(2, 2, 0, 1)), zeros(2, 3, 0, 1))
    halves = reinterpret(Float16, reshape(UInt16[0x7c01, 0x7e00, 1], 1, 3, 1))  # bits of NaN stay as they are
    @test reinterpret(UInt16, cache_write(zeros(Float16, 1, 3, 1), halves)) == reinterpret(UInt16, halves)
    code(inputs...; options...) = code_of(() -> cache_write(inputs...; options...))
    @test code(cache, update, Int64[0, 1, 3]) == :capacity_exceeded
    @test code(cache, zeros(1, 5, 3); circular = true) == :capacity_exceeded
    @test code(cache, zeros(1, 5, 3)) == :capacity_exceeded
    @test code(cache, update, Int64[typemax(Int64), 0, 0]) == :capacity_exceeded
    @test code(cache, update, Int64[0, -1, 0]) == code(cache, update; circular = 1) == :invalid_config
    @test code(cache, update, Int64[0]) == :shape_mismatch
    @test code(cache, zeros(2, 2, 3)) == :shape_mismatch
    @test code(zeros(2, 2), zeros(2, 2)) == :shape_mismatch
    @test code(cache, Float32.(update)) == :dtype_mismatch
    @test code(cache, update, [0.0, 0, 0]) == :dtype_mismatch
    @test code([1], [1]) == :dtype_mismatch
end

@testset "codes of blocks" begin
    x, w = zeros(4, 3, 2), zeros(4, 4)
    @test code_of(() -> layer_norm(zeros(0, 2))) == code_of(() -> rms_norm(fill(1.0))) == :shape_mismatch
    @test code_of(() -> layer_norm(x, zeros(3))) == :shape_mismatch
    @test code_of(() -> layer_norm(x, zeros(4), zeros(3))) == :shape_mismatch
    @test code_of(() -> rms_norm(x, zeros(Float32, 4))) == code_of(() -> gelu([1])) == :dtype_mismatch
    @test code_of(() -> swiglu(x, zeros(4))) == :shape_mismatch
    @test code_of(() -> swiglu(x, nothing)) == code_of(() -> swiglu(nothing, x)) == :dtype_mismatch
    @test code_of(() -> swiglu(x, Float32.(x))) == :dtype_mismatch
    for eps in (-1, Inf, NaN, "x", nothing, true)
        @test code_of(() -> layer_norm(x; eps = eps)) == :invalid_config
        @test code_of(() -> rms_norm(x; eps = eps)) == :invalid_config
        @test code_of(() -> Norm(zeros(4); eps = eps)(x)) == :invalid_config
    end
    @test code_of(() -> gelu(x; approximate = "x")) == :invalid_config
    @test code_of(() -> swiglu(x, x; alpha = Inf)) == :invalid_config
    @test code_of(() -> Norm(zeros(4); kind = "batch")(x)) == :invalid_config
    @test code_of(() -> Norm(zeros(4), zeros(4); kind = "rms")(x)) == :invalid_config
    feed(w_1, w_2; options...) = code_of(() -> FeedForward(w_1, w_2; options...)(x))
    @test feed(w, w) == :none
    @test feed(zeros(3, 4), w) == :shape_mismatch
    @test feed(w, zeros(4, 3)) == :shape_mismatch
    @test feed(w, w; b_1 = zeros(3)) == :shape_mismatch
    @test feed(w, w; activation = "x") == feed(w, w; w_3 = w) == :invalid_config
    @test feed(w, w; activation = "swiglu") == feed(w, Float32.(w)) == :dtype_mismatch
    attention, norm = MultiHeadAttention(w, w, w, w; num_heads = 2), Norm(zeros(4))
    ff = FeedForward(w, w)
    code(layer, inputs...; options...) = code_of(() -> layer(inputs...; options...))
    good = Block(attention, ff, [norm, norm])
    @test code(good, x) == :none && code(good, zeros(4, 3)) == code(good, zeros(5, 3, 2)) == :shape_mismatch
    @test code(good, x, x) == :invalid_config
    @test code(good, x; context_lengths = Int64[1, 1]) == :invalid_config
    @test code(good, x; causal = 1) == :invalid_config
    @test code(Block(attention, ff, [norm, norm, norm]; cross = attention), x) == :invalid_config
    @test code(Block(attention, ff, [norm]), x) == code(Block(ff, ff, [norm, norm]), x) == :invalid_config
    @test code(Block(attention, attention, [norm, norm]), x) == :invalid_config
    @test code(Block(attention, ff, [norm, ff]), x) == :invalid_config
    @test code(Block(attention, ff, [norm, norm]; norm_first = 1), x) == :invalid_config
    @test code(good, Float32.(x)) == code(good, x; kv_lengths = [1.0, 2.0]) == :dtype_mismatch
    wide = MultiHeadAttention(w, w, w, zeros(4, 5); num_heads = 2)
    @test code(Block(wide, ff, [norm, norm]), x) == :shape_mismatch
    tokens, table = zeros(Int64, 3, 2), zeros(4, 5)
    model(; options...) = Transformer(table, [good]; options...)
    @test code(model(), tokens) == :none
    @test code(model(), tokens .+ 5) == :invalid_config
    @test code(model(), tokens .- 1) == :invalid_config
    @test code(model(), Int32.(tokens)) == :dtype_mismatch
    @test code(model(; final_norm = Norm(zeros(Float32, 4))), tokens) == :dtype_mismatch
    @test code(model(), tokens[:, 1]) == code(model(; unembedding = zeros(5, 5)), tokens) == :shape_mismatch
    @test code(model(; position_embedding = zeros(4, 2)), tokens) == :invalid_config
    @test code(model(; segment_embedding = table), tokens) == :invalid_config
    @test code(model(; segment_embedding = table), tokens; segments = tokens .+ 5) == :invalid_config
    @test code(model(; segment_embedding = table), tokens; segments = tokens[1:2, :]) == :shape_mismatch
    @test code(Transformer(table, [attention]), tokens) == :invalid_config
    error = try
        Transformer(table, [good, Block(wide, ff, [norm, norm])])(tokens)
    catch error
        error
    end
    @test error.message == "transformer: layers.1.attention.w_o: expected 4 columns, got 5"

    @testset "what is no layer is named" begin
        function message(call)
            try
                call()
            catch error
                return error.code == :invalid_config ? error.message : error
            end
        end
        due = "expected a MultiHeadAttention, got $(typeof(ff))"
        @test message(() -> Block(ff, ff, [norm, norm])(x)) == "block: attention: $due"
        crossed = Block(attention, ff, [norm, norm, norm]; cross = ff)
        @test message(() -> crossed(x, x)) == "block: cross: $due"
        @test message(() -> Block(attention, ff, [norm, 5])(x)) == "block: norm_2: expected a Norm, got Int64"
        @test message(() -> Block(attention, 5, (norm, norm))(x)) ==
              "block: ff: expected a FeedForward, got Int64"
        @test message(() -> Block(attention, ff, nothing)(x)) == "block: norms: expected a list, got Nothing"
        @test message(() -> Transformer(table, ["x"])(tokens)) ==
              "transformer: layers.0: expected a Block, got String"
        @test message(() -> Transformer(table, 5)(tokens)) ==
              "transformer: blocks: expected a list, got Int64"
        final = Transformer(table, (good,); final_norm = ff)
        @test message(() -> final(tokens)) == "transformer: final_norm: expected a Norm, got $(typeof(ff))"
    end
end
