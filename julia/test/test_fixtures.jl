# The committed fixtures of the conformance suite: a quick check with a plain tolerance. The harness's derived
# bound is the judge.

const FIXTURES = joinpath(@__DIR__, "..", "..", "conformance", "fixtures")
const SUITES = ["softmax", "sdpa", "mha", "kv_cache"]
const LEAST_WALKED = 100

# What is wrong with one tensor; empty when nothing is.
function difference(name, got, want, rtol)
    size(got) == size(want) || return "$name: size $(size(got)), expected $(size(want))"
    eltype(want) <: Integer && return got == want ? "" : "$name: $got, expected $want"
    largest = reduce(max, (abs(w) for w in want if isfinite(w)); init = 0.0)
    for i in eachindex(want)
        g, w = Float64(got[i]), want[i]
        good = isequal(g, w) || g == w || (isfinite(g) && isfinite(w) && abs(g - w) <= rtol * (1 + largest))
        good || return "$name: $g at $(Tuple(CartesianIndices(want)[i])), expected $w"
    end
    return ""
end

# What is wrong with one case in one dtype; empty when nothing is.
function verdict(case, dtype, inputs, expected)
    answer, results = try
        prepared = Port.prepare(case["op"], case["config"], read_tensors(inputs), get(case, "want", nothing))
        value = prepared.call()
        Dict{String,Any}(prepared.extra(value)), Dict{String,Any}(prepared.results(value))
    catch error
        error isa AttentionError || return sprint(showerror, error)
        return String(error.code) == get(case, "error", nothing) ? "" : sprint(showerror, error)
    end
    get(case, "error", nothing) === nothing || return "no error, expected $(case["error"])"
    get(answer, "steps", nothing) == get(case, "steps", nothing) || return "steps: $(answer["steps"])"
    wants = read_tensors(expected)
    keys(results) == keys(wants) || return "tensors: $(keys(results)), expected $(keys(wants))"
    T, rtol = dtype == "f32" ? (Float32, get(case, "native_rtol", 1e-4)) : (Float64, 1e-10)
    for (name, want) in wants
        eltype(want) <: Integer || eltype(results[name]) == T || return "$name: $(eltype(results[name]))"
        problem = difference(name, results[name], want, rtol)
        isempty(problem) || return problem
    end
    return ""
end

function walk(suite)
    folder = joinpath(FIXTURES, suite)
    walked = absent = 0
    cases = parse_json(read(joinpath(folder, "manifest.json"), String))["cases"]
    for case in cases, (dtype, files) in case["files"]
        inputs = joinpath(folder, files["inputs"])
        expected = joinpath(folder, something(get(files, "expected", nothing), "none"))
        failing = get(case, "error", nothing) !== nothing
        if !isfile(inputs) || !(failing || isfile(expected))
            absent += 1
            continue
        end
        walked += 1
        problem = verdict(case, dtype, inputs, expected)
        isempty(problem) || println(case["id"], " ", dtype, ": ", problem, " (", get(case, "note", ""), ")")
        @test problem == ""
    end
    return walked, absent
end

@testset "fixtures" begin
    found = filter(suite -> isfile(joinpath(FIXTURES, suite, "manifest.json")), SUITES)
    if !isempty(found)
        counts = walk.(found)
        walked, absent = sum(first, counts), sum(last, counts)
        println("fixtures: ", walked, " walked, ", absent, " not made on this machine")
        @test walked > LEAST_WALKED
    end
end
