# Softmax, attention, and the ops around its states.

# The keywords of a call as one type whatever their values: nothing is compiled again for another combination.
const Options = NamedTuple{(:mask, :bias, :scale, :softcap),NTuple{4,Any}}
const WithDropout = NamedTuple{(:dropout,),Tuple{Any}}
const WithSinks = NamedTuple{(:sinks,),Tuple{Any}}
const WithPositions = NamedTuple{(:positions, :head_mask),NTuple{2,Any}}

# Rungs of sdpa that do not drop weights.
const WITHOUT_DROPOUT = ["blocked", "simd", "threads"]

function softmax_call(config::Dict, inputs::Tensors, variant, want)
    x = required(inputs, "x")
    return () -> NamedTuple{(:output, :lse)}(softmax_lse(x))
end

function sdpa_call(config::Dict, inputs::Tensors, variant, want)
    q, k, v = required(inputs, "q"), required(inputs, "k"), required(inputs, "v")
    options = merge(options_of(config, inputs), WithDropout((dropout_of(config),)))
    options = merge(options, WithSinks((optional(inputs, "sinks"),)))
    if variant == "flash"
        block_q, block_k = either(config, "block_q", 64), either(config, "block_k", 64)
        return () -> flash(q, k, v; options..., block_q = block_q, block_k = block_k)
    elseif variant == "split"
        splits = either(config, "splits", 4)
        return () -> split_kv(q, k, v; options..., splits = splits)
    elseif variant in WITHOUT_DROPOUT
        options.dropout === nothing || throw(NotOffered("dropout"))
        options = merge(options_of(config, inputs), WithSinks((options.sinks,)))
        variant == "blocked" && return () -> blocked(q, k, v; options...)
        variant == "simd" && return () -> simd(q, k, v; options...)
        return () -> simd(q, k, v; options..., tasks = GRANTED[])
    end
    return () -> sdpa_steps(q, k, v; options...)
end

function mha_call(config::Dict, inputs::Tensors, variant, want)
    x = required(inputs, "x")
    context = optional(inputs, "context")
    rope = object_of(rope_of, optional(config, "rope"))
    layer = attention_layer(config, inputs, "", rope, context !== nothing)
    options = merge(options_of(config, inputs), WithDropout((dropout_of(config),)))
    later = WithPositions((optional(inputs, "positions"), optional(inputs, "head_mask")))
    options = merge(options, later)
    return () -> mha_steps(layer, x, something(context, x); options...)
end

# The weights under a prefix; `crossed`: for a context.
function attention_layer(config::Dict, inputs::Tensors, prefix::String, rope, crossed::Bool)
    @nospecialize rope
    given(name) = optional(inputs, prefix * name)
    heads = (
        num_heads = required(config, "num_heads"),
        num_kv_heads = optional(config, "num_kv_heads"),
        b_o = given("b_o"),
        q_norm = given("q_norm"),
        k_norm = given("k_norm"),
        qk_norm_eps = either(config, "qk_norm_eps", 1e-6),
        rope = rope,
    )
    if given("w_qkv") !== nothing
        for name in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v")
            given(name) === nothing || invalid_config("mha: $name: expected none beside w_qkv, got an array")
        end
        crossed && invalid_config("mha: context: expected none beside w_qkv, got an array")
        packing = either(config, "packing", "blocks")
        packed = (packing = packing, b_qkv = given("b_qkv"))
        return MultiHeadAttention(given("w_qkv"), required(inputs, prefix * "w_o"); heads..., packed...)
    end
    weights = (required(inputs, prefix * name) for name in ("w_q", "w_k", "w_v", "w_o"))
    biases = (b_q = given("b_q"), b_k = given("b_k"), b_v = given("b_v"))
    return MultiHeadAttention(weights...; heads..., biases...)
end

function varlen_call(config::Dict, inputs::Tensors, variant, want)
    q, k, v = required(inputs, "q"), required(inputs, "k"), required(inputs, "v")
    ends_q, ends_k = required(inputs, "cu_seqlens_q"), required(inputs, "cu_seqlens_k")
    options = (
        causal = either(config, "causal", false),
        q_offset = offset_of(config, inputs),
        window = window_of(config),
        scale = optional(config, "scale"),
        softcap = optional(config, "softcap"),
    )
    return () -> varlen(q, k, v, ends_q, ends_k; options...)
end

function merge_call(config::Dict, inputs::Tensors, variant, want)
    states = [required(inputs, name) for name in ("a_output", "a_lse", "b_output", "b_lse")]
    return () -> merge_states(states...)
end

function dropout_call(config::Dict, inputs::Tensors, variant, want)
    x, options = required(inputs, "x"), Dropout(required(config, "p"), required(config, "seed"))
    offset = either(config, "offset", 0)
    return () -> dropout_steps(x, options; offset = offset)
end

function scoring_call(config::Dict, inputs::Tensors, variant, want)
    form = required(config, "form")
    q, k, v = required(inputs, "q"), required(inputs, "k"), required(inputs, "v")
    needed = get(Dict("additive" => ("w_q", "w_k", "w_v"), "general" => ("w",)), form, ())
    foreach(name -> required(inputs, name), needed)
    weights = (; (Symbol(name) => optional(inputs, name) for name in ("w_q", "w_k", "w_v", "w"))...)
    kv_lengths = optional(inputs, "kv_lengths")
    return () -> scoring_steps(form, q, k, v; weights..., kv_lengths = kv_lengths)
end

function structured_call(config::Dict, inputs::Tensors, variant, want)
    h, w_1, w_2 = required(inputs, "h"), required(inputs, "w_1"), required(inputs, "w_2")
    kv_lengths = optional(inputs, "kv_lengths")
    return () -> structured_steps(h, w_1, w_2; kv_lengths = kv_lengths)
end

# The keywords that sdpa, mha and a cache's attend share.
function options_of(config::Dict, inputs::Tensors)
    q_offset = offset_of(config, inputs)
    mask = mask_of(config, optional(inputs, "mask"), optional(inputs, "kv_lengths"), q_offset)
    return shared_options(config, mask, optional(inputs, "bias"))
end

shared_options(config::Dict, @nospecialize(mask), @nospecialize(bias)) =
    Options((mask, bias, optional(config, "scale"), optional(config, "softcap")))

function offset_of(config::Dict, inputs::Tensors)
    q_offset, tensor = plain_offset(config), optional(inputs, "q_offset")
    tensor === nothing && return q_offset
    q_offset === nothing || invalid_config("q_offset: expected config or tensor, got both")
    return tensor
end

# A list is a tensor's business, never the config's.
function plain_offset(config::Dict)
    q_offset = optional(config, "q_offset")
    q_offset isa Vector && invalid_config("q_offset: expected an integer, got a list")
    return q_offset
end

function mask_of(config::Dict, keep, kv_lengths, q_offset)
    @nospecialize
    return Mask(keep, either(config, "causal", false), window_of(config), kv_lengths, q_offset)
end

function window_of(config::Dict)
    window = optional(config, "window")
    return window isa Vector ? Tuple(window) : window
end

function dropout_of(config::Dict)
    return object_of(optional(config, "dropout")) do fields
        Dropout(get(fields, "p", nothing), get(fields, "seed", nothing))
    end
end

const MASKED = [
    "causal", "q_offset", "q_offset_tensor", "window", "mask", "bias", "softcap", "scale", "gqa", "value_dim"
]

append!(OPS, [
    "softmax" => Op(softmax_call, ["output", "lse"], ["lse"]),
    "sdpa" => Op(
        sdpa_call,
        ["output", "weights", "lse", "scores", "capped", "biased"],
        [MASKED; "kv_lengths"; "sinks"; "dropout"; "weights"; "lse"; "scores"; "capped"; "biased"];
        variants = ["naive", "flash", "split", WITHOUT_DROPOUT...],
        complete = ["flash", "split"],
        limited = ["flash", "split", WITHOUT_DROPOUT...],
    ),
    "mha" => Op(
        mha_call,
        ["output", "weights", "lse", "mean_weights"],
        [
            MASKED; "kv_lengths"; "context"; "projection_bias"; "dropout"; "rope"; "positions"; "qk_norm"
            "packed"; "head_mask"; "weights"; "lse"; "mean_weights"
        ],
    ),
    "varlen" => Op(
        varlen_call,
        ["output", "lse"],
        ["causal", "q_offset", "q_offset_tensor", "window", "softcap", "scale", "gqa", "value_dim", "lse"],
    ),
    "merge" => Op(merge_call, ["output", "lse"], ["lse"]),
    "dropout" => Op(dropout_call, ["output", "keep"], ["offset", "keep"]),
    "scoring" => Op(
        scoring_call,
        ["output", "weights", "scores"],
        ["additive", "dot", "general", "scaled", "kv_lengths", "weights", "scores"],
    ),
    "structured" => Op(
        structured_call, ["output", "weights", "penalty"], ["kv_lengths", "weights", "penalty"]
    ),
])
