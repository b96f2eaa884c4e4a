# The table of ops, and the way from a request to a call of the library. The files beside this one know what
# each op takes, by the names of docs/protocol.md; the library knows nothing of them. All values of a config
# are handed on as they came, so that the library's own checks name the wrong ones.

# An op, variant, dtype, output, cache kind or cache step that this port lacks.
struct NotOffered <: Exception
    feature::String
end

invalid_request(message) = throw(AttentionError(:invalid_request, message))
invalid_config(message) = throw(AttentionError(:invalid_config, message))

# How many threads `start` granted: what the variant `threads` shares its work among.
const GRANTED = Ref(1)

const Tensors = Dict{String,Any}
const FLOAT_TYPES = Dict{String,DataType}(name => T for (T, name) in FILE_TYPES)

"""
One op of the protocol. `call_of(config, inputs, variant, want)` makes a call ready: a function without
arguments that gives a named tuple of outputs, perhaps of more than are wanted. Only for kv_cache, whose
outputs have names of their own, it is `prepare_cache` instead.

`complete`: variants that are held to all features like the first. `limited`: variants that give `output` and
`lse` alone.
"""
struct Op
    call_of::Function
    outputs::Vector{String}
    features::Vector{String}
    variants::Vector{String}
    complete::Vector{String}
    limited::Vector{String}
end

Op(call_of, outputs, features; variants = ["naive"], complete = String[], limited = String[]) =
    Op(call_of, outputs, features, variants, complete, limited)

# Filled by the files that know the ops.
const OPS = Pair{String,Op}[]

op_named(name) = (n = findfirst(op -> op[1] == name, OPS); n === nothing ? nothing : OPS[n][2])

"""
A request made ready: `call()` is the library call alone, `results(value)` names the tensors of what it gave,
and `extra(value)` are further fields of the answer.
"""
struct Prepared
    call::Function
    results::Function
    extra::Function
end

function check_claimed(op, variant)
    op isa String || invalid_request("op: expected a name, got $(repr(op))")
    good = variant === nothing || variant isa String
    good || invalid_request("variant: expected a name, got $(repr(variant))")
    known = op_named(op)
    known === nothing && throw(NotOffered("op.$op"))
    variant === nothing || variant in known.variants || throw(NotOffered("variant.$variant"))
    return nothing
end

function prepare(name::String, config, inputs::Tensors, want, variant = nothing, folder = pwd())
    config = something(config, Dict{String,Any}())
    config isa Dict || invalid_request("config: expected an object")
    config = whole(config)
    named = want === nothing || (want isa Vector && all(name -> name isa String, want))
    named || invalid_request("want: expected a list of names")
    op = op_named(name)
    op.call_of === prepare_cache && return prepare_cache(config, inputs, want, folder)
    want = want === nothing ? ["output"] : unique(want)
    variant = something(variant, first(op.variants))
    for output in want
        output in op.outputs || invalid_request("want: $name has no $output")
        given = !(variant in op.limited) || output in ("output", "lse")
        given || throw(NotOffered("want.$output"))
    end
    call = op.call_of(config, inputs, variant, want)
    results(steps) = Fields([pair(output, getfield(steps, Symbol(output))) for output in want])
    return Prepared(call, results, nothing_more)
end

nothing_more(_) = Fields()

# A missing field or tensor and a null are the same. A type that cannot be read is no tensor.
function optional(table::Dict, name::String)
    value = get(table, name, nothing)
    value isa Unreadable && throw(NotOffered("dtype.$(lowercase(value.dtype))"))
    return value
end

function required(table::Dict, name::String)
    value = optional(table, name)
    value === nothing && invalid_request("$name: expected a value, got none")
    return value
end

either(table::Dict, name::String, default) = something(optional(table, name), default)

# An object inside of a config, by the function that knows its fields; what is none is left to the library's
# checks.
object_of(make::Function, value::Dict) = make(value)
object_of(::Function, @nospecialize(value)) = value

# JSON has one kind of number: where an integer is due, 2.0 is 2. One beyond ±FARTHEST, where no position is,
# becomes that: sums with it stay within 64 bits. Where a number is due, it is a Float64.
const REALS = (
    "scale", "softcap", "base", "p", "eps", "qk_norm_eps", "alpha", "factor", "attention_factor", "beta_fast",
    "beta_slow", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor",
)
whole(value) = value
whole(n::Union{Int,BigInt,Float64}) = isinteger(n) ? Int(clamp(n, -FARTHEST, FARTHEST)) : n
whole(list::Vector) = Any[whole(value) for value in list]
whole(table::Dict) =
    Dict{String,Any}(name => name in REALS ? real_number(value) : whole(value) for (name, value) in table)
real_number(value) = value
real_number(n::Union{Int,BigInt}) = Float64(n)
real_number(list::Vector) = Any[real_number(value) for value in list]
