# The committed fixtures of the conformance suite: a quick check with a plain tolerance. The harness's derived
# bound is the judge.

const FIXTURES = joinpath(@__DIR__, "..", "..", "conformance", "fixtures")
const SKIPPED = ["bench", "minilm"]  # large, and made on demand
const LEAST_WALKED = 1000
const DTYPES = ["f32", "bf16"]  # f64 and f16 are the same code, compiled again; the harness asks all four

# What is wrong with one tensor; empty when nothing is.
function difference(name, got, want, rtol)
    size(got) == size(want) || return "$name: size $(size(got)), expected $(size(want))"
    eltype(want) <: Integer && return got == want ? "" : "$name: $got, expected $want"
    want = Float64.(want)  # answers are; halves are codes, which convert exactly
    largest = reduce(max, (abs(w) for w in want if isfinite(w)); init = 0.0)
    for i in eachindex(want)
        g, w = Float64(got[i]), want[i]
        good = isequal(g, w) || g == w || (isfinite(g) && isfinite(w) && abs(g - w) <= rtol * (1 + largest))
        good || return "$name: $g at $(Tuple(CartesianIndices(want)[i])), expected $w"
    end
    return ""
end

# What is wrong with one case in one dtype; empty when nothing is.
function verdict(case, dtype, variant, inputs, expected)
    want = get(case, "want", nothing)
    limited = variant in Port.op_named(case["op"]).limited
    want = limited && want !== nothing ? filter(in(("output", "lse")), want) : want
    answer, results = try
        prepared = Port.prepare(case["op"], case["config"], read_tensors(inputs), want, variant, mktempdir())
        value = prepared.call()
        Dict{String,Any}(prepared.extra(value)), Dict{String,Any}(prepared.results(value))
    catch error
        error isa Port.NotOffered && return error.feature == get(case, "unsupported", "") ? "" : error.feature
        error isa AttentionError || return sprint(showerror, error)
        return String(error.code) == get(case, "error", nothing) ? "" : sprint(showerror, error)
    end
    get(case, "error", nothing) === nothing || return "no error, expected $(case["error"])"
    get(answer, "steps", nothing) == get(case, "steps", nothing) || return "steps: $(answer["steps"])"
    wants = read_tensors(expected)
    keys(results) == keys(limited ? filter(pair -> haskey(results, pair[1]), wants) : wants) ||
        return "tensors: $(keys(results)), expected $(keys(wants))"
    T = Port.FLOAT_TYPES[case["op"] == "cast" ? case["config"]["to"] : dtype]
    rtol = dtype == "f64" ? 1e-10 : get(case, "native_rtol", 1e-4)
    for (name, result) in results
        want, types = wants[name], types_of(name, T)
        eltype(want) <: Integer || eltype(result) in types || return "$name: $(eltype(result))"
        problem = difference(name, result, want, rtol)
        isempty(problem) || return problem
    end
    return ""
end

# The types that a result of that name may have in a case of type T.
function types_of(name, T)
    occursin("lse", name) && return (T, RosettaAttention.compute_type(T))
    occursin(r"_(scale|zero)$", name) && return (Float32,)
    occursin(r"_codes$", name) && return (Float16, RosettaAttention.BFloat16)
    return (T,)
end

function walk(suite)
    folder = joinpath(FIXTURES, suite)
    walked = absent = 0
    cases = parse_json(read(joinpath(folder, "manifest.json"), String))["cases"]
    for case in cases, (dtype, files) in case["files"]
        dtype in DTYPES || continue
        inputs = joinpath(folder, files["inputs"])
        expected = joinpath(folder, something(get(files, "expected", nothing), "none"))
        failing = get(case, "error", nothing) !== nothing
        if !isfile(inputs) || !(failing || isfile(expected))
            absent += 1
            continue
        end
        for variant in Port.op_named(case["op"]).variants
            walked += 1
            problem = verdict(case, dtype, variant, inputs, expected)
            question = join((case["id"], dtype, variant), " ")
            isempty(problem) || println(question, ": ", problem, " (", get(case, "note", ""), ")")
            @test problem == ""
        end
    end
    return walked, absent
end

@testset "fixtures" begin
    suites = isdir(FIXTURES) ? setdiff(readdir(FIXTURES), SKIPPED) : String[]
    found = filter(suite -> isfile(joinpath(FIXTURES, suite, "manifest.json")), suites)
    if !isempty(found)
        counts = walk.(found)
        walked, absent = sum(first, counts), sum(last, counts)
        println("fixtures: ", walked, " walked, ", absent, " not made on this machine")
        @test walked > LEAST_WALKED
    end
end
