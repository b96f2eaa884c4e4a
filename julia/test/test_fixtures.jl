# The committed fixtures of the conformance suite: a quick check with a plain tolerance. The harness's derived
# bound is the judge.

const FIXTURES = joinpath(@__DIR__, "..", "..", "conformance", "fixtures")
const SKIPPED = ["bench", "minilm"]  # large, and made on demand
const LEAST_WALKED = 5150  # of 5232 at hand: a suite that is gone, or is passed over, fails
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
        error isa Port.NotOffered && return "not offered: $(error.feature)"
        error isa AttentionError || return sprint(showerror, error)
        return String(error.code) == get(case, "error", nothing) ? "" : sprint(showerror, error)
    end
    get(case, "error", nothing) === nothing || return "no error, expected $(case["error"])"
    get(answer, "steps", nothing) == get(case, "steps", nothing) || return "steps: $(answer["steps"])"
    wants = read_tensors(expected)
    due = limited ? filter(pair -> pair[1] in ("output", "lse"), wants) : wants
    keys(results) == keys(due) || return "tensors: $(keys(results)), expected $(keys(due))"
    T = Port.FLOAT_TYPES[case["op"] == "cast" ? case["config"]["to"] : dtype]
    rtol = get(case, "native_rtol", 1e-4)
    for (name, result) in results
        want = wants[name]
        types = eltype(want) <: Integer ? (eltype(want),) : types_of(name, T)
        eltype(result) in types || return "$name: $(eltype(result)), expected $(join(types, " or "))"
        problem = difference(name, result, want, rtol)
        isempty(problem) || return problem
    end
    return ""
end

# The types that a result of that name may have in a case of type T.
function types_of(name, T)
    occursin("lse", name) && return (RosettaAttention.compute_type(T),)
    occursin(r"_(scale|zero|tail)$", name) && return (Float32,)
    endswith(name, ".tracked") && return (Float64,)
    occursin(r"_codes$", name) && return (Float16, RosettaAttention.BFloat16)
    return (T,)
end

function walk(suite)
    folder = joinpath(FIXTURES, suite)
    walked = absent = 0
    cases = parse_json(read(joinpath(folder, "manifest.json"), String))["cases"]
    for case in cases, (dtype, files) in case["files"]
        dtype in DTYPES || continue
        @test get(case, "features", []) ⊆ Port.op_named(case["op"]).features  # the port claims all
        names = [files[name] for name in ("inputs", "expected") if haskey(files, name)]
        paths = joinpath.(folder, names)
        if !any(isfile, paths)
            absent += 1  # large: made on demand, and elsewhere
            continue
        end
        @test all(isfile, paths) && (length(paths) == 2 || haskey(case, "error"))
        for variant in Port.op_named(case["op"]).variants
            walked += 1
            problem = verdict(case, dtype, variant, first(paths), last(paths))
            if get(case["config"], "dropout", nothing) !== nothing && variant in Port.WITHOUT_DROPOUT
                @test problem == "not offered: dropout"
                continue
            end
            question = join((case["id"], dtype, variant), " ")
            isempty(problem) || println(question, ": ", problem, " (", get(case, "note", ""), ")")
            @test problem == ""
        end
    end
    return walked, absent
end

@testset "fixtures" begin
    counts = walk.(setdiff(readdir(FIXTURES), SKIPPED))
    walked, absent = (sum(count -> count[n], counts) for n in 1:2)
    println("fixtures: $walked walked, $absent large ones left to the harness")
    @test walked >= LEAST_WALKED
end
