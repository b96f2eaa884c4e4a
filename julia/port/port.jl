# The port: JSON Lines on stdin and stdout, tensors by safetensors files, as docs/protocol.md says. Started as
#
#     julia --project=julia --startup-file=no julia/port/port.jl

module Port

import LinearAlgebra
using RosettaAttention
using RosettaAttention: FARTHEST, FILE_TYPES, Fields, FileError, JSONError, Unreadable
using RosettaAttention: pair, parse_json, read_file, read_tensors, write_json, write_tensors

include("ops.jl")
include("ops_attention.jl")
include("ops_positions.jl")
include("ops_linear.jl")
include("ops_blocks.jl")
include("cache_kinds.jl")
include("cache_script.jl")
include("bench.jl")

"""
What lasts from one request to the next: the threads in force, whether there was a start, and the case that
was timed last.
"""
mutable struct State
    threads::Int
    started::Bool
    bench::Bench
end

State() = State(1, false, Bench())

"""
    main(input, output)

Answer every line of `input` on `output` until it ends or says stop.
"""
function main(input::IO, output::IO)
    state = State()
    for line in eachline(input)
        answer, stop = handle(state, line)
        println(output, answer)
        flush(output)
        stop && return nothing
    end
end

"""
    handle(state, line) -> (answer, stop)

One request, one answer. Whatever goes wrong is an answer too.
"""
function handle(state::State, line::String)
    request = try
        parse_json(line)
    catch error
        return write_json(failure("invalid_request", sprint(showerror, error))), false
    end
    request isa Dict || return write_json(failure("invalid_request", "expected an object")), false
    fields = answer(state, request)
    haskey(request, "seq") && pushfirst!(fields, "seq" => request["seq"])
    return write_answer(fields), get(request, "cmd", nothing) == "stop"
end

# A `seq` such as 1e999 can be read, but not written.
function write_answer(fields::Fields)
    try
        return write_json(fields)
    catch error
        return write_json(failure("invalid_request", sprint(showerror, error)))
    end
end

function answer(state::State, request::Dict)::Fields
    try
        command = get(request, "cmd", nothing)
        command == "start" && return answer_start(state, request)
        command == "run" && return answer_run(state, request)
        command == "bench" && return answer_bench(state, request)
        command == "stop" && return ["status" => "ok"]
        invalid_request("cmd: expected start, run, bench or stop, got $(repr(command))")
    catch error
        error isa AttentionError && return failure(String(error.code), error.message)
        error isa NotOffered && return ["status" => "unsupported", "feature" => error.feature]
        showerror(stderr, error, catch_backtrace())
        println(stderr)
        return failure("internal", sprint(showerror, error))
    end
end

failure(code::String, message::String) = Fields(["status" => "error", "code" => code, "message" => message])

function answer_start(state::State, request::Dict)::Fields
    protocol = whole(optional(request, "protocol"))
    protocol === 1 || invalid_request("protocol: expected 1, got $(repr(protocol))")
    threads = number_field(request, "threads", 1, 1)
    state.threads = GRANTED[] = granted(threads)
    state.started = true
    LinearAlgebra.BLAS.set_num_threads(state.threads)  # the projections of mha; all else is one thread
    dtypes = sort!(collect(keys(FLOAT_TYPES)))
    ops = Fields()
    for (name, op) in OPS
        claim = Fields(["variants" => op.variants, "dtypes" => dtypes, "features" => op.features])
        isempty(op.complete) || push!(claim, pair("complete", op.complete))
        push!(ops, pair(name, claim))
    end
    return [
        "status" => "ok",
        "protocol" => 1,
        "name" => "julia",
        "language" => "Julia",
        "version" => string(RosettaAttention.VERSION_NUMBER),
        "runtime" => "julia $VERSION",
        "threads" => state.threads,
        "isa" => [Sys.CPU_NAME, "f32x$(RosettaAttention.lane_count())"],
        "ops" => ops,
    ]
end

# What the work is shared among. A process has the threads that it was started with, and Julia starts no more
# than there are processors; where it has that many, more tasks than that share them, as threads would.
granted(threads::Int) = Threads.nthreads() < Sys.CPU_THREADS ? min(threads, Threads.nthreads()) : threads

function answer_run(state::State, request::Dict)::Fields
    state.started || invalid_request("run: expected a start before it")
    outputs = path_field(request, "outputs")
    prepared = load(request)
    value = prepared.call()
    write_outputs(outputs, prepared.results(value))
    return ["status" => "ok"; prepared.extra(value)]
end

function answer_bench(state::State, request::Dict)::Fields
    state.started || invalid_request("bench: expected a start before it")
    warmup = number_field(request, "warmup", 2, 0)
    samples = number_field(request, "samples", 10, 1)
    min_sample_ns = number_field(request, "min_sample_ns", 2_000_000, 0)
    key = [get(request, name, nothing) for name in ("case", "op", "variant", "config", "inputs", "want")]
    if state.bench.key != key
        state.bench = Bench()
        state.bench.prepared = load(request)
        state.bench.key = key
    end
    evals, samples_ns, bytes, cpu_ns = measure(state.bench, warmup, samples, min_sample_ns)
    value = state.bench.last
    if optional(request, "outputs") !== nothing
        write_outputs(path_field(request, "outputs"), state.bench.prepared.results(value))
    end
    measured = Fields([
        "status" => "ok",
        "first_ns" => state.bench.first_ns,
        "evals" => evals,
        "samples_ns" => samples_ns,
        "peak_bytes" => bytes,
    ])
    cpu_ns === nothing || push!(measured, pair("cpu_ns", cpu_ns))
    return [measured; state.bench.prepared.extra(value)]
end

function load(request::Dict)
    op, config, want = required(request, "op"), optional(request, "config"), optional(request, "want")
    variant = optional(request, "variant")
    check_claimed(op, variant)
    path = path_field(request, "inputs")
    inputs = try
        read_tensors(path)
    catch error
        error isa Union{FileError,JSONError,SystemError,EOFError,ArgumentError} || rethrow()
        invalid_request("inputs: expected a readable safetensors file: $(sprint(showerror, error))")
    end
    return prepare(op, config, inputs, want, variant, folder_of(request))
end

# Of the files that a script names: that of the outputs, which a bench need not have.
function folder_of(request::Dict)
    outputs = optional(request, "outputs")
    return outputs isa String ? dirname(outputs) : pwd()
end

function write_outputs(path::String, tensors)
    try
        write_tensors(path, tensors)
    catch error
        error isa Union{SystemError,Base.IOError,ArgumentError} || rethrow()
        invalid_request("outputs: expected a path that can be written: $(sprint(showerror, error))")
    end
end

function path_field(request::Dict, name::String)
    path = required(request, name)
    path isa String || invalid_request("$name: expected a path, got $(repr(path))")
    return path
end

function number_field(request::Dict, name::String, default, least)
    value = whole(something(optional(request, name), default))
    good = value isa Int && value >= least
    good || invalid_request("$name: expected an integer >= $least, got $(repr(value))")
    return value
end

end

if abspath(PROGRAM_FILE) == @__FILE__
    # Whatever a library prints goes to stderr: stdout belongs to the protocol.
    answers = stdout
    redirect_stdout(stderr)
    Port.main(stdin, answers)
end
