# Every bad call and its code: the same in every language of the project.

attention_code(q = Q, k = K, v = V; options...) = code_of(() -> sdpa(q, k, v; options...))
mask_code(; conditions...) = attention_code(mask = Mask(; conditions...))

@testset "codes of sdpa" begin
    @test attention_code() == :none

    @testset "shape_mismatch" begin
        bad = [
            (zeros(4, 3, 4), K, V), (Q, zeros(4, 5, 2), V), (Q, K, zeros(6, 5, 2, 2, 1)),  # rank
            (zeros(4, 3, 4, 1), K, V), (Q, K, zeros(6, 5, 2, 1)),  # batch
            (Q, zeros(3, 5, 2, 2), V),  # head size
            (Q, K, zeros(6, 4, 2, 2)), (Q, K, zeros(6, 5, 4, 2)),  # length and heads of v
            (zeros(4, 3, 3, 2), K, V), (Q, zeros(4, 5, 0, 2), zeros(6, 5, 0, 2)),  # groups
            (zeros(0, 3, 4, 2), zeros(0, 5, 2, 2), V),  # D = 0
        ]
        for call in bad
            @test attention_code(call...) == :shape_mismatch
        end
        for dims in ((4,), (5, 2), (5, 3, 3), (5, 3, 4, 3), (5, 3, 4, 2, 1), (0,), (3, 5))
            @test attention_code(bias = zeros(dims)) == :shape_mismatch
            @test mask_code(keep = fill(true, dims)) == :shape_mismatch
        end
        for dims in ((), (1,), (5,), (5, 3), (1, 3, 1), (5, 1, 4, 1), (5, 3, 4, 2))
            @test attention_code(bias = zeros(dims)) == :none
            @test mask_code(keep = fill(true, dims)) == :none
        end
        @test mask_code(kv_lengths = Int64[1]) == :shape_mismatch
        @test mask_code(kv_lengths = Int64[1 2]) == :shape_mismatch
        @test mask_code(q_offset = Int64[1, 2, 3]) == :shape_mismatch
        @test mask_code(q_offset = fill(Int64(1))) == :shape_mismatch
        @test attention_code(sinks = zeros(2)) == :shape_mismatch
        @test attention_code(sinks = zeros(1, 4)) == :shape_mismatch
    end

    @testset "dtype_mismatch" begin
        @test attention_code(Q, Float32.(K), V) == :dtype_mismatch
        @test attention_code(Q, K, Float32.(V)) == :dtype_mismatch
        @test attention_code(Int.(Q), Int.(K), Int.(V)) == :dtype_mismatch
        @test attention_code(Float16.(Q), K, V) == :dtype_mismatch
        @test attention_code(1.0, K, V) == :dtype_mismatch
        @test attention_code(bias = fill(true, 5)) == :dtype_mismatch
        @test attention_code(bias = zeros(Float32, 5)) == :dtype_mismatch
        @test attention_code(bias = 0.0) == :dtype_mismatch
        @test attention_code(sinks = zeros(Float32, 4)) == :dtype_mismatch
        @test mask_code(keep = ones(5)) == :dtype_mismatch
        @test mask_code(kv_lengths = Int32[1, 2]) == :dtype_mismatch
        @test mask_code(kv_lengths = [1.0, 2.0]) == :dtype_mismatch
        @test mask_code(q_offset = Int32[1, 2]) == :dtype_mismatch
    end

    @testset "invalid_config" begin
        for softcap in (0, 0.0, -1, Inf, NaN, true, "x")
            @test attention_code(softcap = softcap) == :invalid_config
        end
        for scale in (Inf, NaN, -Inf, true, "x")
            @test attention_code(scale = scale) == :invalid_config
        end
        for window in (1, (1,), (1, 2, 3), (-1, 0), (0, -1), (0.5, 0), (true, 0), ("x", 0), [1, 2], "xy")
            @test mask_code(window = window) == :invalid_config
        end
        for q_offset in (0.5, 1.0, true, "x")
            @test mask_code(q_offset = q_offset) == :invalid_config
        end
        for causal in (1, nothing, "x")
            @test mask_code(causal = causal) == :invalid_config
        end
        @test mask_code(kv_lengths = Int64[6, 1]) == :invalid_config
        @test mask_code(kv_lengths = Int64[-1, 1]) == :invalid_config
        @test attention_code(mask = fill(true, 5)) == :invalid_config
    end
end

@testset "codes of softmax" begin
    @test code_of(() -> softmax(fill(1.0))) == :shape_mismatch
    @test code_of(() -> softmax([1, 2])) == :dtype_mismatch
    @test code_of(() -> softmax(Float16[1, 2])) == :none
    @test code_of(() -> softmax(Any[1.0, 2.0])) == :dtype_mismatch
    @test code_of(() -> softmax("x")) == :dtype_mismatch
    @test code_of(() -> softmax_lse(zeros(2, 3), zeros(2))) == :shape_mismatch
    @test code_of(() -> softmax_lse(zeros(2, 3), zeros(Float32, 3))) == :dtype_mismatch
end

@testset "codes of mha" begin
    weights = (w_q = zeros(3, 8), w_k = zeros(3, 4), w_v = zeros(3, 6), w_o = zeros(12, 5))
    x = zeros(3, 2, 1)
    function layer_code(x = x, context = x; num_heads = 4, num_kv_heads = 2, changed...)
        w = merge(weights, (; changed...))
        biases = (; (name => w[name] for name in keys(w) if startswith(String(name), "b_"))...)
        layer = MultiHeadAttention(
            w.w_q, w.w_k, w.w_v, w.w_o; num_heads = num_heads, num_kv_heads = num_kv_heads, biases...
        )
        return code_of(() -> layer(x, context))
    end
    @test layer_code() == :none
    for num_heads in (0, -1, 1.5, "4", true, nothing)
        @test layer_code(num_heads = num_heads) == :invalid_config
    end
    for num_kv_heads in (0, 3, 8, 2.0, "2")
        @test layer_code(num_kv_heads = num_kv_heads) == :invalid_config
    end
    @test layer_code(zeros(3, 2)) == :shape_mismatch
    @test layer_code(x, zeros(3, 2, 2)) == :shape_mismatch
    @test layer_code(x, zeros(3, 2)) == :shape_mismatch
    @test layer_code(zeros(4, 2, 1), x) == :shape_mismatch
    @test layer_code(w_q = zeros(3, 7)) == :shape_mismatch
    @test layer_code(w_q = zeros(3, 8, 1)) == :shape_mismatch
    @test layer_code(w_q = zeros(3, 12)) == :shape_mismatch
    @test layer_code(w_k = zeros(4, 4)) == :shape_mismatch
    @test layer_code(w_v = zeros(3, 5)) == :shape_mismatch
    @test layer_code(w_o = zeros(11, 5)) == :shape_mismatch
    @test layer_code(w_q = zeros(3, 0), w_k = zeros(3, 0)) == :shape_mismatch  # D = 0
    @test layer_code(b_q = zeros(7)) == :shape_mismatch
    @test layer_code(b_o = zeros(1, 5)) == :shape_mismatch
    @test layer_code(Int.(x)) == :dtype_mismatch
    @test layer_code(x, Float32.(x)) == :dtype_mismatch
    @test layer_code(w_v = zeros(Float32, 3, 6)) == :dtype_mismatch
    @test layer_code(b_v = zeros(Float32, 6)) == :dtype_mismatch
end

@testset "codes of kv_cache" begin
    for sizes in ((-1, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1, -1), (1.0, 1, 1), (1, true, 1), ("1", 1, 1))
        @test code_of(() -> KVCache{Float64}(sizes...)) == :invalid_config
    end
    for capacity in (-1, 2.5, "x", true)
        @test code_of(() -> KVCache{Float64}(1, 1, 1; capacity = capacity)) == :invalid_config
    end
    cache = KVCache{Float64}(2, 1, 3, 2; capacity = 3)
    append_code(k, v; lengths = nothing) = code_of(() -> append!(cache, k, v; lengths = lengths))
    k, v = zeros(3, 2, 1, 2), zeros(2, 2, 1, 2)
    @test append_code(zeros(3, 2, 1), v) == :shape_mismatch
    @test append_code(zeros(2, 2, 1, 2), v) == :shape_mismatch
    @test append_code(zeros(3, 2, 2, 2), v) == :shape_mismatch
    @test append_code(k, zeros(2, 1, 1, 2)) == :shape_mismatch
    @test append_code(k, zeros(3, 2, 1, 2)) == :shape_mismatch
    @test append_code(k, v; lengths = Int64[1]) == :shape_mismatch
    @test append_code(Float32.(k), v) == :dtype_mismatch
    @test append_code(k, Float32.(v)) == :dtype_mismatch
    @test append_code(k, v; lengths = Int32[1, 1]) == :dtype_mismatch
    @test append_code(k, v; lengths = Int64[1, 3]) == :invalid_config
    @test append_code(k, v; lengths = Int64[-1, 1]) == :invalid_config
    @test append_code(zeros(3, 4, 1, 2), zeros(2, 4, 1, 2)) == :capacity_exceeded
    @test append_code(k, v) == :none
    @test append_code(k, v) == :capacity_exceeded
    @test append_code(k, v; lengths = Int64[1, 1]) == :none
    attend_code(q; options...) = code_of(() -> attend(cache, q; options...))
    @test attend_code(zeros(3, 1, 1)) == :shape_mismatch
    @test attend_code(zeros(2, 1, 1, 2)) == :shape_mismatch
    @test attend_code(zeros(3, 1, 1, 1)) == :shape_mismatch
    @test attend_code(zeros(Float32, 3, 1, 1, 2)) == :dtype_mismatch
    @test attend_code(zeros(3, 1, 1, 2); mask = Mask(kv_lengths = Int64[1, 1])) == :invalid_config
    @test attend_code(zeros(3, 1, 1, 2); mask = 1) == :invalid_config
    @test attend_code(zeros(3, 1, 1, 2); mask = Mask(keep = fill(true, 4))) == :shape_mismatch
    @test attend_code(zeros(3, 1, 1, 2); bias = zeros(4)) == :shape_mismatch
    @test attend_code(zeros(3, 1, 1, 2); mask = Mask(q_offset = 0.5)) == :invalid_config
    for (list, code) in (([1], :shape_mismatch), ([4, 1], :invalid_config), ([-1, 1], :invalid_config))
        @test code_of(() -> truncate!(cache, list)) == code
    end
    @test code_of(() -> truncate!(cache, Any[1.5, 1])) == :invalid_config
    @test code_of(() -> truncate!(cache, "ab")) == :invalid_config
    @test code_of(() -> truncate!(cache, (3, 0))) == :none
end

@testset "messages" begin
    error = try
        sdpa(Q, zeros(3, 5, 2, 2), V)
    catch error
        error
    end
    @test error.message == "sdpa: k: expected head size 4 as in q, got 3"
    @test sprint(showerror, error) == "AttentionError (shape_mismatch): " * error.message
end

@testset "the package" begin
    @test isempty(detect_ambiguities(RosettaAttention))
    documented = Base.Docs.meta(RosettaAttention)
    for name in names(RosettaAttention)
        @test haskey(documented, Base.Docs.Binding(RosettaAttention, name))
    end
    project = read(joinpath(@__DIR__, "..", "Project.toml"), String)
    @test occursin("version = \"$(RosettaAttention.VERSION_NUMBER)\"", project)
end
