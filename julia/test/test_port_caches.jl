# Cache scripts of all kinds through the port. The helpers are those of test_port.jl.

@testset "cache scripts" begin
    step(kind; fields...) = config(; :do => kind, fields...)
    sizes = config(batch = 1, num_kv_heads = 1, head_dim = 2)
    k, v, q = ones(Float32, 2, 3, 1, 1), reshape(Float32[1:6;], 2, 3, 1, 1), zeros(Float32, 3, 1, 1, 1)
    kv = ["k" => k, "v" => v, "q" => q[1:2, :, :, :]]
    latent = ["latent" => k[:, :, :, 1], "rope_key" => zeros(Float32, 1, 3, 1), "q3" => q]
    inputs = stored(kv..., latent..., "tokens" => Int64[1, 2, 3][:, :], "double" => ones(2, 1, 1, 1))
    whole(steps; more...) = merge(sizes, config(; steps = steps, more...))
    run_script(steps; more...) = run_case("kv_cache", inputs; config = whole(steps; more...))
    add, ask = step("append"; k = "k", v = "v"), step("attend"; q = "q", out = "o", lse = "l")
    both = merge(ask, add, step("append_attend"))
    file = (file = "cache.safetensors",)

    kinds = [
        (kind = "contiguous", rope = config()),
        (kind = "rotating", window = 2.0, keep = 1, rope = config()),
        (kind = "paged", page_size = 2, num_pages = 9),
        (kind = "quantised", format = "int8", group = 1),
        (kind = "quantised", format = "int8", key_groups = 2.0, rope = config(), rope_at = "attend"),
    ]
    for kind in kinds
        steps = [
            both => "ok", step("fork"; into = "b") => "ok", step("fork"; into = "b") => "invalid_config",
            merge(add, config(cache = "b")) => "ok", step("reset"; cache = "c") => "invalid_config",
            step("save"; file...) => "ok", step("load"; cache = "b", file...) => "ok",
            step("read"; out = "r", positions = true) => "ok", step("drop"; cache = "b") => "ok",
            merge(add, config(cache = "b")) => "invalid_config", step("reorder"; index = [0]) => "ok",
            step("reorder"; index = [1]) => "invalid_config", step("reorder") => "invalid_request",
            step("reorder"; index = 0) => "invalid_request",
            step("reorder"; index = "0") => "invalid_request",
            step("reorder"; index = ["0"]) => "invalid_config",
            step("stats"; out = "s") => "ok", step("truncate"; lengths = [3]) => "ok", ask => "ok",
            step("load"; file = "none") => "invalid_request", step("reset"; cache = 1) => "invalid_config",
        ]
        answer, tensors = run_script(first.(steps); kind...)
        @test answer["steps"] == last.(steps)
        @test tensors["s.positions"] == [3] && size(tensors["s.bytes"]) == (1,)
        @test haskey(tensors, "s.pages") == (kind.kind == "paged")
        @test tensors["r.positions"][end] == 2 && eltype(tensors["o"]) == Float32
    end
    rm(joinpath(dirname(ANSWERED), "cache.safetensors"))

    steps = [
        both => "ok", step("read"; out = "r", codes = true) => "ok", step("evict"; positions = [0]) => "ok",
        step("shift"; by = -1, from = 1) => "ok", step("shift"; by = -1, from = 0) => "invalid_config",
        step("evict") => "invalid_request", step("read"; out = "p", positions = true) => "ok",
        step("evict"; positions = 0) => "invalid_request",
        step("evict"; positions = config()) => "invalid_request",
        step("evict"; positions = [0.5]) => "invalid_config",
    ]
    answer, tensors = run_script(first.(steps); kind = "quantised", format = "int4", zero_point = true)
    @test answer["steps"] == last.(steps) && tensors["p.positions"][:] == [0, 1]
    @test eltype(tensors["r.k_codes"]) == UInt8 && size(tensors["r.v_zero"]) == (1, 3, 1, 1)

    steps = [merge(add, config(tokens = "tokens")), merge(add, config(padding = "up"))]
    answer, _ = run_script(steps; kind = "paged", page_size = 2, num_pages = 9)
    @test answer["steps"] == ["ok", "invalid_config"]
    @test run_script(steps)[1]["steps"] == ["invalid_config", "invalid_config"]
    @test run_script([add, add, ask]; kind = "cross")[1]["steps"] == ["ok", "invalid_config", "ok"]
    add_latent = step("append"; latent = "latent", rope_key = "rope_key")
    answer, tensors = run_script(
        [add_latent, step("attend"; q = "q3", out = "o"), step("read"; out = "r")];
        kind = "latent", latent_dim = 2, rope_dim = 1,
    )
    @test answer["steps"] == ["ok", "ok", "ok"] && size(tensors["r.rope_key"]) == (1, 3, 1)
    @test tensors["o"][:] == [1, 1]

    # the first append that is good says of which type a cache is
    double = step("append"; k = "double", v = "double")
    mixed = step("append"; k = "double", v = "v")
    @test run_script([mixed, add, double])[1]["steps"] == ["dtype_mismatch", "ok", "dtype_mismatch"]

    fault(steps; more...) = code(run_script(steps; more...))
    @test fault([add, step("evict"; positions = [0])]; kind = "rotating", window = 1) == "step.evict"
    @test fault([step("truncate"; lengths = [0])]; kind = "cross") == "step.truncate"
    @test fault([add]; kind = "rotating") == fault([add]; kind = "paged") == "invalid_request"
    @test fault([add]; kind = "quantised") == fault([add]; kind = "latent") == "invalid_request"
    @test fault([add]; kind = "rotating", window = 0) == fault([add]; rope = 5) == "invalid_config"
    @test fault([add]; kind = "quantised", format = "int3") == "invalid_config"
end

@testset "policies, tracked weights, key groups, heads of their own" begin
    step(kind; fields...) = config(; :do => kind, fields...)
    v = reshape(Float32[1, 2, 4, 8, 16, 32, 64, 128], 1, 4, 2, 1)
    inputs = stored("k" => zero(v), "v" => v, "q" => zeros(Float32, 1, 1, 2, 1), "w" => zeros(1, 1, 2, 1))
    sizes = config(batch = 1, num_kv_heads = 2, head_dim = 1)
    whole(steps; more...) = merge(sizes, config(; steps = steps, more...))
    run_script(steps; more...) = run_case("kv_cache", inputs; config = whole(steps; more...))
    add, ask = step("append"; k = "k", v = "v"), step("attend"; q = "q", out = "o")
    by(type; fields...) = step("evict"; policy = config(; type = type, fields...))
    look = step("read"; out = "r", positions = true, tracked = true)

    steps = [
        add => "ok", ask => "ok", by("window"; budget = 3.0, sinks = 1) => "ok",
        by("snapkv"; budget = 3, q = "q", scale = 1, pool = 3) => "ok",
        by("heavy_hitters"; budget = 2, recent = 1) => "ok", look => "ok", step("stats"; out = "s") => "ok",
        by("key_norm"; budget = 1) => "ok", by("window"; budget = 1, recent = 0) => "invalid_config",
        by("window") => "invalid_request", step("evict"; policy = config(budget = 1)) => "invalid_request",
        step("evict"; policy = 5) => "invalid_config", by(5; budget = 1) => "invalid_config",
        step("evict"; policy = config(type = "window", budget = 1), positions = [0]) => "invalid_config",
        step("evict") => "invalid_request", by("snapkv"; budget = 1) => "invalid_request",
        by("snapkv"; budget = 1, q = "none") => "invalid_request",
        by("snapkv"; budget = 1, q = "w") => "dtype_mismatch",
    ]
    for (kind, list) in (("contiguous", :invalid_config), ("quantised", :invalid_config), ("per_head", :ok))
        more = [add => "ok", by("window"; budget = [1, 2]) => String(list)]
        answer, tensors = run_script(first.([steps; more]); kind = kind, format = "int8", track = true)
        @test answer["steps"] == last.([steps; more])
        per_head = kind == "per_head"
        @test size(tensors["r.lengths"]) == size(tensors["s.positions"]) == (per_head ? (2, 1) : (1,))
        @test tensors["r.positions"] == (per_head ? reshape([0, 3, 0, 3], 2, 2, 1) : [0 3]')
        @test eltype(tensors["r.tracked"]) == Float64 && tensors["r.tracked"][:] == fill(0.25, 4)
    end
    @test run_script([look])[1]["steps"] == ["invalid_config"]

    codes = step("read"; out = "r", codes = true)
    grouped = (kind = "quantised", format = "int4", key_groups = 3, zero_point = true)
    answer, tensors = run_script([add, codes]; grouped...)
    @test answer["steps"] == ["ok", "ok"] && size(tensors["r.k_codes"]) == (1, 4, 2, 1)
    @test size(tensors["r.k_scale"]) == size(tensors["r.k_zero"]) == size(tensors["r.k_tail"]) == (1, 1, 2, 1)

    # the queries of a policy say of which type an empty cache is
    answer, _ = run_script([by("snapkv"; budget = 1, q = "w"), add]; kind = "contiguous")
    @test answer["steps"] == ["ok", "ok"]

    fault(steps; more...) = code(run_script(steps; more...))
    @test fault([add, by("random"; budget = 1)]) == "policy.random"
    @test fault([step("truncate"; lengths = [0])]; kind = "per_head") == "step.truncate"
    @test fault([add]; track = 1) == fault([add]; kind = "per_head", track = "true") == "invalid_config"
    for n in (0, -1, 1.5, "2", [2])
        @test fault([add]; kind = "quantised", format = "int8", key_groups = n) == "invalid_config"
    end
    @test fault([add]; kind = "quantised", format = "f16", key_groups = 2) == "invalid_config"
    @test fault([add]; rope_at = "attend") == "invalid_config"
    @test fault([add]; rope = config(), rope_at = "late") == "invalid_config"
end
