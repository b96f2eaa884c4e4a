# The protocol through the handler, and through a process as a driver starts it.

const ANSWERED = tempname()

function stored(tensors...)
    path = tempname()
    write_tensors(path, Fields(collect(Pair{String,Any}, tensors)))
    return path
end

ask(state, request) = parse_json(Port.handle(state, write_json(request))[1])

function started()
    state = Port.State()
    ask(state, Dict{String,Any}("cmd" => "start", "protocol" => 1, "threads" => 1))
    return state
end

# One `run`: the answer, and the tensors of the output file, which exists only after an ok.
function run_case(op, inputs; state = started(), config = Dict{String,Any}(), more...)
    rm(ANSWERED; force = true)
    request = Dict{String,Any}("cmd" => "run", "seq" => 7, "op" => op, "config" => config)
    merge!(request, Dict("inputs" => inputs, "outputs" => ANSWERED), Dict(String(k) => v for (k, v) in more))
    answer = ask(state, request)
    return answer, ispath(ANSWERED) ? read_tensors(ANSWERED) : nothing
end

code(result) = (@test result[2] === nothing; get(result[1], "code", get(result[1], "feature", nothing)))
config(; fields...) = Dict{String,Any}(String(k) => v for (k, v) in fields)

@testset "start and stop" begin
    state = Port.State()
    answer = ask(state, Dict{String,Any}("cmd" => "run", "seq" => 1))
    @test answer["status"] == "error" && answer["code"] == "invalid_request" && answer["seq"] == 1
    answer = ask(state, Dict{String,Any}("cmd" => "start", "protocol" => 1, "threads" => 1))
    @test answer["status"] == "ok" && answer["protocol"] == 1 && answer["name"] == "julia"
    @test answer["threads"] == 1
    @test length(answer["ops"]) == 25 && answer["ops"]["kv_cache"]["variants"] == ["naive"]
    @test all(op["dtypes"] == ["bf16", "f16", "f32", "f64"] for op in values(answer["ops"]))
    @test all(allunique(op["features"]) for op in values(answer["ops"]))
    @test answer["ops"]["sdpa"]["variants"] == ["naive", "flash", "split", "blocked", "simd", "threads"]
    @test answer["ops"]["sdpa"]["complete"] == ["flash", "split"] && !haskey(answer["ops"]["mha"], "complete")
    again(; fields...) = ask(state, config(; cmd = "start", fields...))
    @test again(protocol = 1, threads = 2)["threads"] == Port.granted(2)
    @test again(protocol = 1, threads = nothing)["threads"] == 1
    for lanes in ("4", "8", "16")
        answer = withenv(() -> again(protocol = 1), "ROSETTA_SIMD_LANES" => lanes)
        @test answer["isa"] == [Sys.CPU_NAME, "f32x$lanes"]
    end
    @test withenv(() -> again(protocol = 1), "ROSETTA_SIMD_LANES" => "5")["code"] == "invalid_config"
    wrongs = ((threads = 0,), (threads = 1.5,), (protocol = 2,), (protocol = true,), (protocol = nothing,))
    for wrong in wrongs
        @test again(; protocol = 1, wrong...)["code"] == "invalid_request"
    end
    @test again()["code"] == "invalid_request"
    @test Port.handle(state, "{\"cmd\":\"stop\"}") == ("{\"status\":\"ok\"}", true)
end

@testset "lines that are no request" begin
    state = started()
    bad = ["", "x", "[1]", "null", "{\"cmd\":\"jump\"}", "{}", "{\"cmd\":null}", "{\"cmd\":NaN}", "\xff"]
    for line in bad
        answer, stop = Port.handle(state, line)
        @test !stop && parse_json(answer)["code"] == "invalid_request" && !occursin('\n', answer)
    end
    @test parse_json(Port.handle(state, "{\"cmd\":\"jump\",\"seq\":[1,\"é\"]}")[1])["seq"] == [1, "é"]
    @test parse_json(Port.handle(state, "{\"cmd\":\"jump\",\"seq\":1e999}")[1])["status"] == "error"
    large = "18446744073709551617"  # beyond 64 bits
    @test occursin("\"seq\":$large,", Port.handle(state, "{\"cmd\":\"jump\",\"seq\":$large}")[1])
end

@testset "run" begin
    q, k, v = score_form(Float32, [0, log(2.0f0)], [3, 6])
    inputs = stored("q" => q, "k" => k, "v" => v)
    answer, tensors = run_case("sdpa", inputs; config = config(scale = 1))
    @test answer == Dict("seq" => 7, "status" => "ok")
    @test collect(keys(tensors)) == ["output"] && near(tensors["output"], fill(5.0f0, 1, 1, 1, 1))
    _, tensors = run_case("sdpa", inputs; config = config(scale = 1), want = ["lse", "scores"])
    @test sort(collect(keys(tensors))) == ["lse", "scores"] && eltype(tensors["lse"]) == Float32
    @test tensors["scores"] == reshape(Float32[0, log(2.0f0)], 2, 1, 1, 1)

    options = config(scale = nothing, causal = nothing, window = [nothing, 0], q_offset = 1, junk = 1)
    @test run_case("sdpa", inputs; config = options, variant = "naive")[1]["status"] == "ok"
    @test run_case("sdpa", inputs; config = nothing, variant = nothing, want = nothing)[1]["status"] == "ok"
    @test isempty(run_case("sdpa", inputs; want = [])[2])
    @test collect(keys(run_case("sdpa", inputs; want = ["lse", "lse"])[2])) == ["lse"]
    for far in (1.0, 1e300, -1e300, typemax(Int), typemin(Int), big(10)^30)
        window = [1.0, abs(float(far))]
        options = config(scale = 1, causal = true, window = window, q_offset = far, softcap = 2)
        @test run_case("sdpa", inputs; config = options)[1]["status"] == "ok"
    end

    _, tensors = run_case("softmax", stored("x" => [0.0 -Inf; 0.0 -Inf]); want = ["output", "lse"])
    @test same(tensors["output"], [0.5 0.0; 0.5 0.0]) && same(tensors["lse"], [log(2.0), -Inf])

    layer = stored("x" => ones(2, 1, 1), ("w_$n" => [1.0 0.0; 0.0 1.0] for n in ("q", "k", "v", "o"))...)
    _, tensors = run_case("mha", layer; config = config(num_heads = 2), want = ["output", "weights", "lse"])
    @test tensors["output"] == ones(2, 1, 1) && size(tensors["weights"]) == (1, 1, 2, 1)
end

@testset "run that cannot be" begin
    q, k, v = score_form(Float64, [0, 1], [3, 6])
    inputs = stored("q" => q, "k" => k, "v" => v)
    sdpa_code(; fields...) = code(run_case("sdpa", inputs; config = config(; fields...)))
    @test code(run_case("flash", inputs)) == "op.flash"
    @test code(run_case(5, inputs)) == "invalid_request"
    @test code(run_case("sdpa", inputs; variant = 5)) == "invalid_request"
    @test code(run_case("sdpa", inputs; variant = "wasm")) == "variant.wasm"
    dropout = config(dropout = config(p = 0.5, seed = 1))
    for variant in ("blocked", "simd", "threads")
        @test run_case("sdpa", inputs; variant = variant)[1]["status"] == "ok"
        @test code(run_case("sdpa", inputs; variant = variant, config = dropout)) == "dropout"
        @test code(run_case("sdpa", inputs; variant = variant, want = ["weights"])) == "want.weights"
    end
    @test code(run_case("sdpa", inputs; want = ["junk"])) == "invalid_request"
    @test code(run_case("sdpa", inputs; want = "output")) == "invalid_request"
    @test code(run_case("sdpa", inputs; config = 5)) == "invalid_request"
    @test code(run_case("sdpa", tempname())) == "invalid_request"
    @test code(run_case("sdpa", tempdir())) == "invalid_request"
    @test code(run_case("sdpa", nothing)) == "invalid_request"
    @test code(run_case("sdpa", inputs; outputs = nothing)) == "invalid_request"
    @test code(run_case("sdpa", inputs; outputs = joinpath(tempname(), "x"))) == "invalid_request"
    @test code(run_case("sdpa", stored("q" => q, "k" => k))) == "invalid_request"
    @test code(run_case("sdpa", inputs; outputs = "\0")) == "invalid_request"
    @test code(run_case("sdpa", "\0")) == "invalid_request"
    @test code(run_case("sdpa", stored("q" => q, "k" => k, "v" => Float16.(v)))) == "dtype_mismatch"
    small = written("{\"q\":" * entry("F8_E5M2", "[1]", 0, 1) * "}", [0x00])
    @test code(run_case("sdpa", small)) == "dtype.f8_e5m2"
    @test code(run_case("sdpa", inputs; variant = "flash", want = ["weights"])) == "want.weights"
    @test code(run_case("sdpa", inputs; variant = "flash", config = config(block_q = 0))) == "invalid_config"
    @test code(run_case("sdpa", stored("q" => q, "k" => Float32.(k), "v" => v))) == "dtype_mismatch"
    for window in ([1], "x", [-1, 0], Dict{String,Any}(), 1)
        @test sdpa_code(window = window) == "invalid_config"
    end
    for bad in ((causal = 1,), (softcap = "x",), (scale = [1],), (q_offset = 0.5,), (q_offset = [0],))
        @test sdpa_code(; bad...) == "invalid_config"
    end
    both = stored("q" => q, "k" => k, "v" => v, "q_offset" => Int64[0])
    @test code(run_case("sdpa", both; config = config(q_offset = 0))) == "invalid_config"
    @test run_case("sdpa", both)[1]["status"] == "ok"
    layer = stored("x" => ones(2, 1, 1), ("w_$n" => [1.0 0.0; 0.0 1.0] for n in ("q", "k", "v", "o"))...)
    @test code(run_case("mha", layer)) == "invalid_request"
    @test code(run_case("mha", layer; config = config(num_heads = "2"))) == "invalid_config"
    answer, _ = run_case("sdpa", inputs; config = config(softcap = 0))
    @test occursin("sdpa: softcap: expected", answer["message"])
end

@testset "kv_cache" begin
    step(kind; fields...) = config(; :do => kind, fields...)
    script(steps...; more...) =
        config(; batch = 1, num_kv_heads = 1, head_dim = 1, steps = [steps...], more...)
    q, k, v = uniform_form(Float32, [1, 3]; queries = 1)
    wide, double = ones(Float32, 2, 2, 1, 1), ones(1, 2, 1, 1)
    inputs = stored("k" => k, "v" => v, "q" => q, "one" => Int64[1], "wide" => wide, "double" => double)
    append_kv, ask_q = step("append"; k = "k", v = "v"), step("attend"; q = "q", out = "o")
    steps = [
        append_kv => "ok",
        ask_q => "ok",
        append_kv => "capacity_exceeded",
        step("append"; k = "wide", v = "v") => "shape_mismatch",
        step("append"; k = "double", v = "v") => "dtype_mismatch",
        step("append"; k = "k", v = "missing") => "invalid_request",
        step("append"; k = "k") => "invalid_request",
        step("attend"; q = "q", out = 5) => "invalid_request",
        step("attend"; q = "q", out = "o", lse = 5) => "invalid_request",
        step("attend"; q = "q", out = "o", q_offset = [0]) => "invalid_config",
        step("truncate") => "invalid_config",
        step("truncate"; lengths = [5]) => "invalid_config",
        step("truncate"; lengths = [1.0]) => "ok",
        step("attend"; q = "q", out = "o2", lse = "l2") => "ok",
        step("read"; out = "r") => "ok",
        step("reset") => "ok",
        step("append"; k = "k", v = "v", lengths = "one") => "ok",
        step("attend"; q = "q", out = "o3", causal = true, softcap = 0) => "invalid_config",
        step("read"; out = "r3") => "ok",
    ]
    whole = script(first.(steps)...; capacity = 2, kind = "contiguous")
    answer, tensors = run_case("kv_cache", inputs; config = whole)
    @test answer["steps"] == last.(steps)
    @test sort(collect(keys(tensors))) ==
          ["l2", "o", "o2", "r.k", "r.lengths", "r.v", "r3.k", "r3.lengths", "r3.v"]
    @test tensors["o"][] == 2 && tensors["o2"][] == 1 && tensors["r3.lengths"] == [1]
    @test same(tensors["r.v"], ones(Float32, 1, 1, 1, 1)) && eltype(tensors["l2"]) == Float32

    three = script(append_kv, ask_q, step("read"; out = "r"))
    _, tensors = run_case("kv_cache", inputs; config = three, want = ["o"])
    @test collect(keys(tensors)) == ["o"]
    _, tensors = run_case("kv_cache", inputs; config = script(step("read"; out = "r")))
    @test eltype(tensors["r.k"]) == Float64  # nothing was appended: that of "double", the first by its name
    cache_code(config; more...) = code(run_case("kv_cache", inputs; config = config, more...))
    @test cache_code(script(ask_q); want = ["junk"]) == "invalid_request"
    @test cache_code(script(ask_q; kind = "evicting")) == "kind.evicting"
    @test cache_code(script(ask_q, step("swap"; into = "x"))) == "step.swap"
    @test cache_code(script(ask_q; capacity = -1)) == "invalid_config"
    @test cache_code(script(ask_q; capacity = "x")) == "invalid_config"
    @test cache_code(config(batch = 1)) == "invalid_request"
    @test cache_code(script(5)) == "invalid_request"
    @test cache_code(script(config(k = "k"))) == "invalid_request"
end

@testset "bench" begin
    q, k, v = uniform_form(Float64, [1, 3]; queries = 1)
    inputs, state = stored("q" => q, "k" => k, "v" => v), started()
    bench = config(cmd = "bench", seq = 8, case = "c", op = "sdpa", config = config(), inputs = inputs)
    merge!(bench, config(outputs = ANSWERED, warmup = 1, samples = 5, min_sample_ns = 200000))
    rm(ANSWERED; force = true)
    first_answer = ask(state, bench)
    @test first_answer["status"] == "ok" && first_answer["evals"] >= 1
    @test length(first_answer["samples_ns"]) == 5
    @test all(first_answer["samples_ns"] .* first_answer["evals"] .>= 199999) && first_answer["first_ns"] > 0
    @test read_tensors(ANSWERED)["output"][] == 2
    rm(inputs)  # the prepared case is kept
    @test ask(state, bench)["first_ns"] == first_answer["first_ns"]
    @test !Sys.isunix() || first_answer["cpu_ns"] > 0
    bench["case"] = "another"
    @test ask(state, bench)["code"] == "invalid_request"
    bench["samples"] = 0
    @test ask(state, bench)["code"] == "invalid_request"
    merge!(bench, config(samples = 1, inputs = stored("q" => q, "k" => k, "v" => v)))
    @test ask(state, merge(bench, config(config = config(softcap = 0))))["code"] == "invalid_config"
    steps = [config(; :do => "append", k = "k", v = "v")]
    script = config(batch = 1, num_kv_heads = 1, head_dim = 1, steps = steps)
    @test ask(state, merge(bench, config(op = "kv_cache", config = script)))["steps"] == ["ok"]
end

@testset "a process" begin
    package = joinpath(@__DIR__, "..")
    q, k, v = uniform_form(Float32, [1, 3]; queries = 1)
    inputs = stored("q" => q, "k" => k, "v" => v)
    requests = [
        "{\"cmd\":\"start\",\"protocol\":1,\"threads\":1}",
        "not JSON",
        write_json(config(cmd = "run", seq = 1, op = "sdpa", inputs = inputs, outputs = ANSWERED)),
        "{\"cmd\":\"stop\"}",
        "{\"cmd\":\"start\"}",
    ]
    port = joinpath(package, "port", "port.jl")
    command = `$(Base.julia_cmd()) --project=$package --startup-file=no $port`
    function talk(lines)
        input = IOBuffer(join(lines, "\n") * "\n")
        output = read(pipeline(command; stdin = input, stderr = devnull), String)
        return split(output, "\n"; keepempty = false)
    end
    rm(ANSWERED; force = true)
    answers = parse_json.(String.(talk(requests)))
    @test [answer["status"] for answer in answers] == ["ok", "error", "ok", "ok"]  # nothing after stop
    @test read_tensors(ANSWERED)["output"][] == 2
    @test length(talk(requests[1:2])) == 2  # the end of the input is a stop too
end
