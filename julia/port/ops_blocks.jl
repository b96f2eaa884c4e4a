# Norms, activations, and what is built of them.

function layer_norm_call(config::Dict, inputs::Tensors, variant, want)
    x, weight, bias = required(inputs, "x"), optional(inputs, "weight"), optional(inputs, "bias")
    eps = either(config, "eps", 1e-5)
    return () -> layer_norm_steps(x, weight, bias; eps = eps)
end

function rms_norm_call(config::Dict, inputs::Tensors, variant, want)
    x, weight, eps = required(inputs, "x"), optional(inputs, "weight"), either(config, "eps", 1e-5)
    return () -> (output = rms_norm(x, weight; eps = eps),)
end

function gelu_call(config::Dict, inputs::Tensors, variant, want)
    x, approximate = required(inputs, "x"), either(config, "approximate", "none")
    return () -> (output = gelu(x; approximate = approximate),)
end

function swiglu_call(config::Dict, inputs::Tensors, variant, want)
    a, b, alpha = required(inputs, "a"), required(inputs, "b"), either(config, "alpha", 1)
    return () -> (output = swiglu(a, b; alpha = alpha),)
end

function cache_write_call(config::Dict, inputs::Tensors, variant, want)
    cache, update = required(inputs, "cache"), required(inputs, "update")
    write_indices, circular = optional(inputs, "write_indices"), either(config, "circular", false)
    return () -> (output = cache_write(cache, update, write_indices; circular = circular),)
end

function mla_call(config::Dict, inputs::Tensors, variant, want)
    x = required(inputs, "x")
    needed = (:w_q, :w_dkv, :w_kr, :w_uk, :w_uv, :w_o)
    layer = MultiHeadLatentAttention(;
        (name => required(inputs, String(name)) for name in needed)...,
        (name => optional(inputs, String(name)) for name in (:w_dq, :q_norm, :kv_norm))...,
        num_heads = required(config, "num_heads"),
        eps = either(config, "eps", 1e-6),
        rope = object_of(rope_of, either(config, "rope", Dict{String,Any}())),
    )
    options = (
        causal = either(config, "causal", false),
        kv_lengths = optional(inputs, "kv_lengths"),
        scale = optional(config, "scale"),
    )
    variant == "absorbed" && return () -> mla_absorbed(layer, x; options...)
    return () -> mla_steps(layer, x; options...)
end

function block_call(config::Dict, inputs::Tensors, variant, want)
    x, context = required(inputs, "x"), optional(inputs, "context")
    layer = block_layer(config, inputs, "", context !== nothing)
    options = (
        causal = either(config, "causal", false),
        kv_lengths = optional(inputs, "kv_lengths"),
        context_lengths = optional(inputs, "context_lengths"),
    )
    return () -> (output = layer(x, context; options...),)
end

# The block whose weights are under a prefix.
function block_layer(config::Dict, inputs::Tensors, prefix::String, crossed::Bool)
    alone = !crossed && any(startswith(prefix * "cross."), keys(inputs))
    alone && invalid_request("context: expected a value beside $(prefix)cross, got none")
    rope = object_of(rope_of, optional(config, "rope"))
    attention = attention_layer(config, inputs, prefix * "attention.", rope, false)
    cross = crossed ? attention_layer(config, inputs, prefix * "cross.", nothing, true) : nothing
    names = [prefix * "norm_$n" for n in 1:(crossed ? 3 : 2)]
    norms = [norm_layer(config, inputs, name, required(inputs, name * ".weight")) for name in names]
    ff = prefix * "ff."
    activation = either(config, "activation", "gelu")
    gate = activation == "swiglu" ? required(inputs, ff * "w_3") : nothing
    gate_bias = activation == "swiglu" ? optional(inputs, ff * "b_3") : nothing
    feed_forward = FeedForward(
        required(inputs, ff * "w_1"),
        required(inputs, ff * "w_2");
        w_3 = gate,
        b_1 = optional(inputs, ff * "b_1"),
        b_2 = optional(inputs, ff * "b_2"),
        b_3 = gate_bias,
        activation = activation,
    )
    norm_first = either(config, "norm_first", true)
    return Block(attention, feed_forward, norms; cross = cross, norm_first = norm_first)
end

norm_layer(config::Dict, inputs::Tensors, name::String, weight) = Norm(
    weight,
    optional(inputs, name * ".bias");
    kind = either(config, "norm", "layer"),
    eps = either(config, "eps", 1e-5),
)

function transformer_call(config::Dict, inputs::Tensors, variant, want)
    tokens, segments = required(inputs, "tokens"), optional(inputs, "segments")
    table = optional(inputs, "segment_embedding")
    both = (segments === nothing) == (table === nothing)
    both || invalid_request("segments: expected segments and segment_embedding, got one of them")
    num_layers = required(config, "num_layers")
    good = num_layers isa Int && num_layers >= 0
    good || invalid_config("transformer: num_layers: expected an integer >= 0, got $(repr(num_layers))")
    function norm_of(name)
        weight, bias = optional(inputs, "$name.weight"), optional(inputs, "$name.bias")
        return weight === bias === nothing ? nothing : norm_layer(config, inputs, name, weight)
    end
    model = Transformer(
        required(inputs, "embedding"),
        [block_layer(config, inputs, "layers.$n.", false) for n in 0:num_layers-1];
        position_embedding = optional(inputs, "position_embedding"),
        segment_embedding = table,
        embedding_norm = norm_of("embedding_norm"),
        final_norm = norm_of("final_norm"),
        unembedding = optional(inputs, "unembedding"),
    )
    options = (causal = either(config, "causal", false), kv_lengths = optional(inputs, "kv_lengths"))
    return () -> transformer_steps(model, tokens; segments = segments, options...)
end

const BLOCK_FEATURES = [
    "causal", "kv_lengths", "rope", "gqa", "qk_norm", "rms", "post_norm", "gelu_tanh", "relu", "swiglu",
    "biases",
]

append!(OPS, [
    "mla" => Op(
        mla_call,
        ["output", "weights", "lse", "latent", "rope_key"],
        [
            "causal", "kv_lengths", "scale", "rope", "query_latent", "kv_norm", "q_norm", "value_dim",
            "weights", "lse", "latent", "rope_key",
        ];
        variants = ["naive", "absorbed"],
        complete = ["absorbed"],
    ),
    "layer_norm" => Op(
        layer_norm_call, ["output", "mean", "inv_std"], ["weight", "bias", "eps", "mean", "inv_std"]
    ),
    "rms_norm" => Op(rms_norm_call, ["output"], ["weight", "eps"]),
    "gelu" => Op(gelu_call, ["output"], ["tanh"]),
    "swiglu" => Op(swiglu_call, ["output"], ["alpha"]),
    "block" => Op(block_call, ["output"], [BLOCK_FEATURES; "context"; "context_lengths"]),
    "transformer" => Op(
        transformer_call,
        ["output", "logits"],
        [
            BLOCK_FEATURES; "position_embedding"; "segments"; "embedding_norm"; "final_norm"; "unembedding"
            "logits"
        ],
    ),
    "cache_write" => Op(cache_write_call, ["output"], ["write_indices", "circular"]),
])
