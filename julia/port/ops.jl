# From a request to a call of the library. This file knows the names of docs/protocol.md; the library knows
# nothing of them. All values of a config are handed on as they came, so that the library's own checks name
# the wrong ones.

# An op, variant, dtype, cache kind or cache step that this port lacks.
struct NotOffered <: Exception
    feature::String
end

invalid_request(message) = throw(AttentionError(:invalid_request, message))

const VARIANTS = ["naive"]
const DTYPE_NAMES = Dict(Float64 => "f64", Float32 => "f32")

const OPS = [
    "softmax" => ["lse"],
    "sdpa" => [
        "causal", "q_offset", "q_offset_tensor", "window", "mask", "bias", "kv_lengths", "softcap", "scale",
        "sinks", "gqa", "value_dim", "weights", "lse", "scores", "capped", "biased",
    ],
    "mha" => [
        "context", "gqa", "value_dim", "projection_bias", "causal", "q_offset", "q_offset_tensor", "window",
        "mask", "bias", "kv_lengths", "softcap", "scale", "weights", "lse",
    ],
    "kv_cache" => [
        "contiguous", "grow", "append", "append_lengths", "attend", "attend_lse", "truncate", "reset", "read",
        "causal", "q_offset", "q_offset_tensor", "window", "mask", "bias", "softcap", "scale", "gqa",
        "value_dim",
    ],
]

const OUTPUTS = Dict(
    "softmax" => ["output", "lse"],
    "sdpa" => ["output", "weights", "lse", "scores", "capped", "biased"],
    "mha" => ["output", "weights", "lse"],
)

"""
A request made ready: `call()` is the library call alone, `results(value)` names the tensors of what it gave,
and `extra(value)` are further fields of the answer.
"""
struct Prepared
    call::Function
    results::Function
    extra::Function
end

const Tensors = Dict{String,Any}

function check_claimed(op, variant)
    op isa String || invalid_request("op: expected a name, got $(repr(op))")
    good = variant === nothing || variant isa String
    good || invalid_request("variant: expected a name, got $(repr(variant))")
    op in first.(OPS) || throw(NotOffered("op.$op"))
    variant === nothing || variant in VARIANTS || throw(NotOffered("variant.$variant"))
    return nothing
end

function prepare(op::String, config, inputs::Tensors, want)
    config = something(config, Dict{String,Any}())
    config isa Dict || invalid_request("config: expected an object")
    config = whole(config)
    named = want === nothing || (want isa Vector && all(name -> name isa String, want))
    named || invalid_request("want: expected a list of names")
    op == "kv_cache" && return prepare_cache(config, inputs, want)
    want = want === nothing ? ["output"] : unique(want)
    for name in want
        name in OUTPUTS[op] || invalid_request("want: $op has no $name")
    end
    op == "softmax" && return prepare_softmax(inputs, want)
    op == "sdpa" && return prepare_sdpa(config, inputs, want)
    return prepare_mha(config, inputs, want)
end

function prepare_softmax(inputs::Tensors, want)
    x = required(inputs, "x")
    want == ["output"] && return Prepared(() -> softmax(x), only_output, nothing_more)
    named((weights, lse)) = Fields([pair(name, name == "lse" ? lse : weights) for name in want])
    return Prepared(() -> softmax_lse(x), named, nothing_more)
end

function prepare_sdpa(config::Dict, inputs::Tensors, want)
    q, k, v = required(inputs, "q"), required(inputs, "k"), required(inputs, "v")
    options = merge(options_of(config, inputs), Sinks((optional(inputs, "sinks"),)))
    want == ["output"] && return Prepared(() -> sdpa(q, k, v; options...), only_output, nothing_more)
    return Prepared(() -> sdpa_steps(q, k, v; options...), steps -> fields(steps, want), nothing_more)
end

function prepare_mha(config::Dict, inputs::Tensors, want)
    x = required(inputs, "x")
    layer = MultiHeadAttention(
        required(inputs, "w_q"),
        required(inputs, "w_k"),
        required(inputs, "w_v"),
        required(inputs, "w_o");
        num_heads = required(config, "num_heads"),
        num_kv_heads = optional(config, "num_kv_heads"),
        b_q = optional(inputs, "b_q"),
        b_k = optional(inputs, "b_k"),
        b_v = optional(inputs, "b_v"),
        b_o = optional(inputs, "b_o"),
    )
    context = something(optional(inputs, "context"), x)
    options = options_of(config, inputs)
    want == ["output"] && return Prepared(() -> layer(x, context; options...), only_output, nothing_more)
    call() = mha_steps(layer, x, context; options...)
    return Prepared(call, steps -> fields(steps, want), nothing_more)
end

only_output(output) = Fields([pair("output", output)])
nothing_more(_) = Fields()
fields(steps, want) = Fields([pair(name, getfield(steps, Symbol(name))) for name in want])

# The keywords that sdpa, mha and a cache's attend share.
function options_of(config::Dict, inputs::Tensors)
    q_offset = plain_offset(config)
    if optional(inputs, "q_offset") !== nothing
        both = q_offset !== nothing
        both && throw(AttentionError(:invalid_config, "q_offset: expected config or tensor, got both"))
        q_offset = inputs["q_offset"]
    end
    mask = mask_of(config, optional(inputs, "mask"), optional(inputs, "kv_lengths"), q_offset)
    return shared_options(config, mask, optional(inputs, "bias"))
end

# A list is a tensor's business, never the config's.
function plain_offset(config::Dict)
    q_offset = optional(config, "q_offset")
    q_offset isa Vector && throw(AttentionError(:invalid_config, "q_offset: expected an integer, got a list"))
    return q_offset
end

function mask_of(config::Dict, keep, kv_lengths, q_offset)
    @nospecialize
    window = optional(config, "window")
    window = window isa Vector ? Tuple(window) : window
    return Mask(keep, something(optional(config, "causal"), false), window, kv_lengths, q_offset)
end

# The keywords of a call as one type whatever their values: nothing is compiled again for another combination.
const Options = NamedTuple{(:mask, :bias, :scale, :softcap),NTuple{4,Any}}
const Sinks = NamedTuple{(:sinks,),Tuple{Any}}

shared_options(config::Dict, @nospecialize(mask), @nospecialize(bias)) =
    Options((mask, bias, optional(config, "scale"), optional(config, "softcap")))

# A missing field or tensor and a null are the same. Half precision is read, but not computed.
function optional(table::Dict, name::String)
    value = get(table, name, nothing)
    value isa Unreadable && throw(NotOffered("dtype.$(lowercase(value.dtype))"))
    value isa AbstractArray{Float16} && throw(NotOffered("dtype.f16"))
    return value
end

# JSON has one kind of number: where an integer is due, 2.0 is 2. One beyond ±FARTHEST, where no position is,
# becomes that: sums with it stay within 64 bits.
const FARTHEST = 2^62
const REALS = ("scale", "softcap")
whole(value) = value
whole(n::Union{Int,BigInt,Float64}) = isinteger(n) ? Int(clamp(n, -FARTHEST, FARTHEST)) : n
whole(list::Vector) = Any[whole(value) for value in list]
whole(table::Dict) =
    Dict{String,Any}(name => name in REALS ? value : whole(value) for (name, value) in table)

function required(table::Dict, name::String)
    value = optional(table, name)
    value === nothing && invalid_request("$name: expected a value, got none")
    return value
end
