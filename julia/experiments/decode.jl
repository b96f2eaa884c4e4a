# What a KV cache saves: one layer of multi-head attention generates tokens in three ways, counted and timed.
# docs/decode.md says what is asked of such a program. Started as
#
#     julia --project=julia --startup-file=no julia/experiments/decode.jl [--n 64,128] [--width 128]
#         [--heads 8] [--quick] [--repeats R] [--json]

module Decode

import LinearAlgebra
using Printf: @sprintf
using Random: MersenneTwister
using RosettaAttention
using RosettaAttention: Fields, write_json

include("decode_ways.jl")
include("decode_check.jl")

const LENGTHS, QUICK = [64, 128, 256, 512, 1024], [16, 32, 64, 128]

"""
What a command line asks for.
"""
struct Asked
    lengths::Vector{Int}
    width::Int
    heads::Int
    repeats::Int
    json::Bool
end

"""
    asked_of(arguments) -> Asked

Throws `ArgumentError` for what cannot be meant.
"""
function asked_of(arguments)
    numbers = Dict("--n" => nothing, "--width" => [128], "--heads" => [8], "--repeats" => [1])
    quick = json = false
    rest = copy(arguments)
    while !isempty(rest)
        name = popfirst!(rest)
        if name in ("--quick", "--json")
            quick, json = quick || name == "--quick", json || name == "--json"
        elseif haskey(numbers, name) && !isempty(rest)
            numbers[name] = whole_numbers(name, popfirst!(rest))
        else
            known = "--quick, --json, or --n, --width, --heads, --repeats and a value"
            throw(ArgumentError("$name: expected one of $known"))
        end
    end
    width, heads, repeats = (only_one(name, numbers[name]) for name in ("--width", "--heads", "--repeats"))
    divides = width % heads == 0
    divides || throw(ArgumentError("--heads: expected a number that divides the width, got $heads"))
    lengths = sort!(unique(something(numbers["--n"], quick ? QUICK : LENGTHS)))
    return Asked(lengths, width, heads, repeats, json)
end

function whole_numbers(name, text)
    numbers = [tryparse(Int, part) for part in split(text, ",")]
    good = all(n -> n !== nothing && n >= 1, numbers)
    good || throw(ArgumentError("$name: expected integers >= 1, got $text"))
    return Int.(numbers)
end

function only_one(name, numbers)
    length(numbers) == 1 || throw(ArgumentError("$name: expected one integer, got $(length(numbers))"))
    return first(numbers)
end

"""
    main(arguments, output)

Measure, check and print; throws `WrongOutput` when a way does not make what the layer makes.
"""
function main(arguments, output::IO)
    asked = asked_of(arguments)
    LinearAlgebra.BLAS.set_num_threads(1)
    rng = MersenneTwister(0)
    layer, first_token = random_layer(rng, asked.width, asked.heads), randn(rng, Float32, asked.width, 1, 1)
    runs = Dict{String,Run}()
    for way in WAYS
        generate(way, layer, first_token, [min(4, minimum(asked.lengths))])  # compiles
        println(stderr, "decode: $way, to $(maximum(asked.lengths)) tokens")
        several = [generate(way, layer, first_token, asked.lengths) for _ in 1:asked.repeats]
        foreach(run -> check_outputs(way, run, layer), several)
        fastest = Dict(n => minimum(run.seconds[n] for run in several) for n in asked.lengths)
        runs[way] = Run(several[1].text, several[1].outputs, fastest, several[1].held)
        asked.json && print_json(output, way, runs[way], asked)
    end
    asked.json || print_table(output, runs, asked)
    return nothing
end

function print_json(output::IO, way::String, run::Run, asked::Asked)
    for n in asked.lengths
        counted = cost(way, n, asked.width, asked.heads)
        println(output, write_json(Fields([
            "port" => "julia",
            "way" => way,
            "tokens" => n,
            "seconds" => run.seconds[n],
            "multiply_adds" => counted.multiply_adds,
            "moved" => counted.moved,
            "held" => run.held[n],
        ])))
        flush(output)
    end
    return nothing
end

function print_table(output::IO, runs, asked::Asked)
    title = "One layer, width $(asked.width), $(asked.heads) heads, Julia, Float32"
    println(output, title, "; x n: n times the cache's.\n")
    rows = [["T", "made again", "million mul-adds", "", "MiB moved", "", "ms", ""]]
    times(ratio) = ratio == 1 ? "" : @sprintf("x %.1f", ratio)
    for n in asked.lengths, way in WAYS
        c, best = cost(way, n, asked.width, asked.heads), cost(CACHE, n, asked.width, asked.heads)
        seconds, fastest = runs[way].seconds[n], runs[CACHE].seconds[n]
        adds, moved = @sprintf("%.1f", c.multiply_adds / 1e6), @sprintf("%.1f", c.moved / 2^20)
        ratios = times.((c.multiply_adds / best.multiply_adds, c.moved / best.moved, seconds / fastest))
        label, ms = way == EVERYTHING ? string(n) : "", @sprintf("%.1f", 1e3 * seconds)
        push!(rows, [label, way, adds, ratios[1], moved, ratios[2], ms, ratios[3]])
    end
    if length(asked.lengths) > 1
        short, long = asked.lengths[end-1:end]
        grows(of) = @sprintf("T^%.2f", log(of(long) / of(short)) / log(long / short))
        for way in WAYS
            counted(n) = cost(way, n, asked.width, asked.heads)
            adds, moved = grows(n -> counted(n).multiply_adds), grows(n -> counted(n).moved)
            p = (adds, moved, grows(n -> runs[way].seconds[n]))
            push!(rows, [way == EVERYTHING ? "grows" : "", way, p[1], "", p[2], "", p[3], ""])
        end
    end
    widths = [maximum(length(row[c]) for row in rows) for c in 1:8]
    for row in rows
        cells = [c == 2 ? rpad(row[c], widths[c]) : lpad(row[c], widths[c]) for c in 1:8]
        println(output, rstrip(join(cells, "  ")))
    end
    held, longest = @sprintf("%.2f", runs[CACHE].held[asked.lengths[end]] / 2^20), asked.lengths[end]
    println(output, "\nThe cache holds $held MiB after $longest tokens; the other ways hold nothing.")
    return nothing
end

end

if abspath(PROGRAM_FILE) == @__FILE__
    try
        Decode.main(copy(ARGS), stdout)
    catch error
        error isa Union{ArgumentError,Decode.WrongOutput} || rethrow()
        println(stderr, "decode: ", error isa ArgumentError ? error.msg : error.message)
        exit(error isa ArgumentError ? 2 : 1)
    end
end
