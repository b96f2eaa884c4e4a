# Types and positions.

function cast_call(config::Dict, inputs::Tensors, variant, want)
    x, to = required(inputs, "x"), required(config, "to")
    to isa String || invalid_config("cast: to: expected the name of a type, got $(repr(to))")
    T = get(FLOAT_TYPES, to, nothing)
    T === nothing && throw(NotOffered("cast.$to"))
    return () -> (output = cast(x, T),)
end

function sinusoidal_call(config::Dict, inputs::Tensors, variant, want)
    x = required(inputs, "x")
    options = (
        positions = optional(inputs, "positions"),
        offset = optional(config, "offset"),
        base = either(config, "base", 10000.0),
        halves = either(config, "halves", false),
    )
    return () -> sinusoidal_steps(x; options...)
end

function rope_call(config::Dict, inputs::Tensors, variant, want)
    x, options, positions = required(inputs, "x"), rope_of(config), optional(inputs, "positions")
    cosines, sines = optional(inputs, "cos"), optional(inputs, "sin")
    both = (cosines === nothing) == (sines === nothing)
    both || invalid_request("cos: expected cos and sin together, got one of them")
    return () -> rope_steps(x, options; positions = positions, cos = cosines, sin = sines)
end

rope_of(fields::Dict) = Rope(
    optional(fields, "base"),
    either(fields, "interleaved", false),
    optional(fields, "rotary_dim"),
    optional(fields, "offset"),
    object_of(scaling_of, optional(fields, "scaling")),
)

const SCALINGS = Dict(
    "linear" => LinearScaling,
    "dynamic" => DynamicScaling,
    "yarn" => YarnScaling,
    "llama3" => Llama3Scaling,
    "longrope" => LongRopeScaling,
)

# A field that is absent keeps its default, which is `nothing` where there is none: the library's checks say
# so.
function scaling_of(fields::Dict)
    T = named_type(SCALINGS, "rope: scaling", fields)
    given = filter(name -> optional(fields, String(name)) !== nothing, collect(fieldnames(T)))
    return T(; (name => fields[String(name)] for name in given)...)
end

function named_type(types::Dict, argument::String, fields::Dict)
    name = get(fields, "type", nothing)
    known = join(sort!(collect(keys(types))), ", ")
    good = name isa String && haskey(types, name)
    good || invalid_config("$argument: expected one of $known, got $(repr(name))")
    return types[name]
end

function alibi_call(config::Dict, inputs::Tensors, variant, want)
    scores, q_offset = required(inputs, "scores"), either(config, "q_offset", 0)
    return () -> alibi_steps(scores; q_offset = q_offset)
end

function relative_bias_call(config::Dict, inputs::Tensors, variant, want)
    scores, table = required(inputs, "scores"), required(inputs, "table")
    options = (
        q_offset = either(config, "q_offset", 0),
        bidirectional = either(config, "bidirectional", true),
        max_distance = either(config, "max_distance", 128),
    )
    return () -> relative_bias_steps(scores, table; options...)
end

append!(OPS, [
    "cast" => Op(cast_call, ["output"], collect(keys(FLOAT_TYPES))),
    "sinusoidal" => Op(
        sinusoidal_call, ["output", "table"], ["positions", "offset", "base", "halves", "table"]
    ),
    "rope" => Op(
        rope_call,
        ["output", "cos", "sin"],
        [
            "positions", "offset", "base", "interleaved", "rotary_dim", "tables", "linear", "dynamic", "yarn",
            "llama3", "longrope", "cos", "sin",
        ],
    ),
    "alibi" => Op(alibi_call, ["output", "slopes", "bias"], ["q_offset", "slopes", "bias"]),
    "relative_bias" => Op(
        relative_bias_call,
        ["output", "buckets"],
        ["q_offset", "unidirectional", "max_distance", "buckets"],
    ),
])
