# The linear family and the sparse patterns.

function linear_attention_call(config::Dict, inputs::Tensors, variant, want)
    q, k, v = required(inputs, "q"), required(inputs, "k"), required(inputs, "v")
    state, norm = optional(inputs, "state"), optional(inputs, "norm")
    both = (state === nothing) == (norm === nothing)
    both || invalid_request("state: expected state and norm together, got one of them")
    options = (causal = either(config, "causal", false), state = state, norm = norm)
    variant == "recurrent" && return () -> linear_recurrent(q, k, v; options...)
    variant == "naive" && return () -> linear_attention(q, k, v; options...)
    chunk = either(config, "chunk", 64)
    return () -> linear_chunked(q, k, v; options..., chunk = chunk)
end

function gated_linear_call(config::Dict, inputs::Tensors, variant, want)
    q, k, v = required(inputs, "q"), required(inputs, "k"), required(inputs, "v")
    options = (
        rule = either(config, "rule", "linear"),
        state = optional(inputs, "state"),
        decay = optional(inputs, "decay"),
        beta = optional(inputs, "beta"),
        scale = optional(config, "scale"),
    )
    return () -> gated_linear(q, k, v; options...)
end

function sparse_call(config::Dict, inputs::Tensors, variant, want)
    q, k, v = required(inputs, "q"), required(inputs, "k"), required(inputs, "v")
    pattern = object_of(fields -> pattern_of(fields, inputs), required(config, "pattern"))
    scale, causal = optional(config, "scale"), either(config, "causal", false)
    attend() = sparse_steps(q, k, v, pattern; scale = scale, causal = causal)
    "mask" in want || return attend
    return () -> merge(attend(), (mask = sparse_mask(pattern, size(q, 2), size(k, 2); causal = causal),))
end

const PATTERNS = Dict(
    "window" => Window,
    "dilated" => Dilated,
    "strided" => Strided,
    "fixed" => Fixed,
    "global" => Global,
    "bigbird" => BigBird,
    "blocks" => Blocks,
)

# A field that is absent is `nothing`, which no pattern takes.
function pattern_of(fields::Dict, inputs::Tensors)
    T = named_type(PATTERNS, "sparse: pattern", fields)
    value(name) = name == :mask ? required(inputs, "block_mask") : optional(fields, field_name(name))
    return T(map(value, fieldnames(T))...)
end

field_name(name::Symbol) = name == :global_blocks ? "global" : String(name)

append!(OPS, [
    "linear_attention" => Op(
        linear_attention_call,
        ["output", "state", "norm"],
        ["causal", "state_in", "gqa", "value_dim", "state", "norm"];
        variants = ["naive", "recurrent", "chunked"],
        complete = ["recurrent", "chunked"],
    ),
    "gated_linear" => Op(
        gated_linear_call,
        ["output", "state"],
        ["gated", "delta", "gated_delta", "state_in", "scale", "gqa", "value_dim", "state"],
    ),
    "sparse" => Op(
        sparse_call,
        ["output", "lse", "mask", "visited"],
        [
            "window", "dilated", "strided", "fixed", "global", "bigbird", "blocks", "causal", "scale", "gqa",
            "value_dim", "lse", "mask", "visited",
        ],
    ),
])
