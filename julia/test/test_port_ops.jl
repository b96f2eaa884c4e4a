# All ops of the family through the port, from tensors and a config.

const FAMILY_RNG = MersenneTwister(40)
r(dims...) = randn(FAMILY_RNG, dims...)
named(shapes...) = Any[name => r(dims...) for (name, dims) in shapes]
square(names...) = named((name => (4, 4) for name in names)...)

const HEADS = named("q" => (4, 3, 4, 2), "k" => (4, 3, 2, 2), "v" => (5, 3, 2, 2))
const ATTENTION = square("w_q", "w_k", "w_v", "w_o")
const SEQUENCE, SCORES = named("x" => (4, 3, 2)), named("scores" => (3, 3, 2, 2))
const BLOCK = [
    ["attention." * name => w for (name, w) in ATTENTION]
    named("norm_1.weight" => (4,), "norm_1.bias" => (4,), "norm_2.weight" => (4,))
    square("ff.w_1", "ff.w_2")
]
const MODEL = [
    Any["tokens" => Int64[0 1; 2 3; 4 0], "embedding" => r(4, 5)]
    Any["layers.0." * name => w for (name, w) in BLOCK]
]
const YARN = config(type = "yarn", factor = 2, original_length = 8)
const FORM = named("q" => (4, 3, 2), "k" => (2, 3, 2), "v" => (5, 3, 2), "w" => (2, 4))

# Op, tensors, config, outputs.
const FAMILY = [
    ("softmax", SEQUENCE, config(), ["output", "lse"]),
    ("sdpa", HEADS, config(causal = true), ["output", "lse"]),
    ("sdpa", HEADS, config(dropout = config(p = 0.5, seed = 1), causal = true), ["output", "lse"]),
    (
        "mha",
        [SEQUENCE; ATTENTION],
        config(num_heads = 2, rope = config(scaling = YARN)),
        ["output", "weights", "lse", "mean_weights"],
    ),
    (
        "mha",
        [SEQUENCE; named("w_qkv" => (4, 12)); square("w_o")],
        config(num_heads = 2, packing = "heads"),
        ["output"],
    ),
    ("cast", SEQUENCE, config(to = "f64"), ["output"]),
    ("sinusoidal", SEQUENCE, config(offset = 2.0), ["output", "table"]),
    (
        "rope",
        named("x" => (4, 3, 2, 2)),
        config(interleaved = true, scaling = YARN),
        ["output", "cos", "sin"],
    ),
    ("alibi", SCORES, config(q_offset = 1), ["output", "slopes", "bias"]),
    ("relative_bias", [SCORES; named("table" => (2, 4))], config(max_distance = 4.0), ["output", "buckets"]),
    ("scoring", FORM, config(form = "general"), ["output", "weights", "scores"]),
    (
        "merge",
        named("a_output" => (4, 3), "a_lse" => (3,), "b_output" => (4, 3), "b_lse" => (3,)),
        config(),
        ["output", "lse"],
    ),
    (
        "varlen",
        [
            named("q" => (4, 4, 3), "k" => (4, 2, 3), "v" => (5, 2, 3))
            Any["cu_seqlens_q" => Int64[0, 1, 3], "cu_seqlens_k" => Int64[0, 2, 3]]
        ],
        config(causal = true),
        ["output", "lse"],
    ),
    ("dropout", SEQUENCE, config(p = 0.5, seed = 3), ["output", "keep"]),
    ("linear_attention", HEADS, config(causal = true, chunk = 2), ["output", "state", "norm"]),
    (
        "gated_linear",
        [HEADS; named("decay" => (1, 3, 2, 2), "beta" => (1, 3, 1, 2))],
        config(rule = "gated_delta"),
        ["output", "state"],
    ),
    (
        "sparse",
        HEADS,
        config(pattern = config(type = "window", left = 1, right = 0), causal = true),
        ["output", "lse", "mask", "visited"],
    ),
    (
        "structured",
        named("h" => (4, 3, 2), "w_1" => (4, 2), "w_2" => (2, 3)),
        config(),
        ["output", "weights", "penalty"],
    ),
    (
        "mla",
        [
            SEQUENCE
            named("w_q" => (4, 12), "w_dkv" => (4, 3), "w_kr" => (4, 2), "w_uk" => (3, 8), "w_uv" => (3, 2))
            named("w_o" => (2, 4))
        ],
        config(num_heads = 2),
        ["output", "weights", "lse", "latent", "rope_key"],
    ),
    ("layer_norm", SEQUENCE, config(eps = 0.1), ["output", "mean", "inv_std"]),
    ("rms_norm", SEQUENCE, config(), ["output"]),
    ("gelu", SEQUENCE, config(approximate = "tanh"), ["output"]),
    ("swiglu", named("a" => (3, 2), "b" => (3, 2)), config(alpha = 2), ["output"]),
    ("block", [SEQUENCE; BLOCK], config(num_heads = 2, norm_first = false), ["output"]),
    ("transformer", MODEL, config(num_heads = 2, num_layers = 1.0), ["output", "logits"]),
    ("cache_write", named("cache" => (4, 3, 2), "update" => (4, 1, 2)), config(), ["output"]),
]

# A float tensor in a type; an lse that goes in is never a half.
function in_type(T, (name, x))
    T = endswith(name, "_lse") ? RosettaAttention.compute_type(T) : T
    return name => eltype(x) == Float64 ? RosettaAttention.narrow(x, T) : x
end

@testset "every op in all of its variants" begin
    @test issetequal([first.(FAMILY); "kv_cache"], first.(Port.OPS))
    state = started()
    for (op, tensors, options, want) in FAMILY, T in (Float32, BFloat16)
        inputs = stored((in_type(T, tensor) for tensor in tensors)...)
        results = Any[]
        for variant in Port.op_named(op).variants
            haskey(options, "dropout") && variant in Port.WITHOUT_DROPOUT && continue
            more = (config = options, want = want, variant = variant)
            answer, got = run_case(op, inputs; state = state, more...)
            @test answer["status"] == "ok" && sort(collect(keys(got))) == sort(want)
            push!(results, got)
        end
        # a step of bf16's seven bits: what two variants give may be rounded to either side
        limit = T == Float32 ? tolerance(T) : 2.0^-7
        for other in results[2:end], name in want
            got, naive = Float64.(other[name]), Float64.(results[1][name])
            @test isapprox(got, naive; rtol = limit, atol = limit)
        end
        for name in want
            x = results[1][name]
            kind = op == "cast" ? Float64 : name == "lse" ? Float32 : T
            @test !(eltype(x) <: AbstractFloat) || eltype(x) == kind
        end
    end
end

@testset "what is missing or of the wrong kind" begin
    state = started()
    function fault(op, tensors, options = config(); changes...)
        inputs = stored((in_type(Float32, tensor) for tensor in tensors)...)
        return code(run_case(op, inputs; state = state, config = merge(options, config(; changes...))))
    end
    function fine(op, tensors, options = config(); changes...)
        inputs = stored((in_type(Float32, tensor) for tensor in tensors)...)
        answer, _ = run_case(op, inputs; state = state, config = merge(options, config(; changes...)))
        return answer["status"] == "ok"
    end
    for (op, tensors, options, _) in FAMILY
        @test fault(op, tensors[2:end], options) == "invalid_request"
    end
    needed = [
        "cast" => "to", "dropout" => "p", "dropout" => "seed", "scoring" => "form", "mha" => "num_heads"
    ]
    for (op, name) in needed
        case = FAMILY[findfirst(case -> case[1] == op, FAMILY)]
        @test fault(op, case[2], filter(pair -> pair[1] != name, case[3])) == "invalid_request"
    end
    @test fault("cast", SEQUENCE; to = "i8") == "cast.i8"
    @test fault("cast", SEQUENCE; to = 5) == "invalid_config"
    for dropout in (5, config(), config(p = 0.5), config(p = 2, seed = 1))
        @test fault("sdpa", HEADS; dropout = dropout) == "invalid_config"
    end

    layer, heads = [SEQUENCE; ATTENTION], config(num_heads = 2)
    for scaling in (1, config(), config(type = "x"), config(type = "linear"))
        @test fault("mha", layer, heads; rope = config(scaling = scaling)) == "invalid_config"
    end
    context, packed = named("context" => (4, 3, 2)), named("w_qkv" => (4, 12))
    @test fault("mha", layer, heads; rope = 5) == "invalid_config"
    @test fault("mha", [layer; context], heads; rope = config()) == "invalid_config"
    @test fault("mha", [layer; packed], heads) == "invalid_config"
    @test fault("mha", [SEQUENCE; packed; square("w_o"); context], heads) == "invalid_config"
    tables = named("cos" => (2, 3), "sin" => (2, 3))
    @test fault("rope", [named("x" => (4, 3, 2, 2)); tables]; base = 10000) == "invalid_config"
    @test fault("rope", [named("x" => (4, 3, 2, 2)); tables[1:1]]) == "invalid_request"
    positions = Any["positions" => zeros(Int64, 3, 2)]
    @test fault("rope", [named("x" => (4, 3, 2, 2)); positions]; offset = 0) == "invalid_config"
    @test fault("sinusoidal", [SEQUENCE; positions]; offset = 0) == "invalid_config"
    @test fault("mha", [layer; positions], heads; rope = config(offset = 0)) == "invalid_config"
    dynamic = config(type = "dynamic", factor = big(10)^30, original_length = 1)
    @test fine("rope", named("x" => (4, 3, 2, 2)); scaling = dynamic)

    @test fault("sparse", HEADS) == "invalid_request"
    @test fault("sparse", HEADS; pattern = config(type = "blocks", block = 2)) == "invalid_request"
    for pattern in (5, "window", config(), config(type = "x"), config(type = "window", left = 1))
        @test fault("sparse", HEADS; pattern = pattern) == "invalid_config"
    end
    @test fault("linear_attention", [HEADS; named("norm" => (4, 2, 2))]) == "invalid_request"
    @test fault("gated_linear", HEADS; rule = "x") == "invalid_config"
    @test fault("scoring", FORM; form = "additive") == "invalid_request"
    @test fault("scoring", FORM; form = "x") == "invalid_config"
    foreign = named("w_v" => (4,))  # the weights of another form
    @test fault("scoring", [FORM; foreign]; form = "general") == "invalid_config"
    alike = [name => name == "k" ? FORM[1][2] : x for (name, x) in FORM]
    @test fault("scoring", alike; form = "dot") == "invalid_config"
    @test fine("scoring", alike[1:3]; form = "dot")

    block, cross = [SEQUENCE; BLOCK], ["cross." * name => w for (name, w) in ATTENTION]
    @test fault("block", [block; cross], heads) == "invalid_request"
    @test fault("block", [block; context], heads) == "invalid_request"
    @test fault("block", block, heads; activation = "swiglu") == "invalid_request"
    @test fault("block", block, heads; norm = "x") == "invalid_config"
    @test fault("block", block, heads; activation = "x") == "invalid_config"
    @test fault("transformer", MODEL, heads) == "invalid_request"
    @test fault("transformer", MODEL, heads; num_layers = 2) == "invalid_request"
    @test fault("transformer", MODEL, heads; num_layers = -1) == "invalid_config"
    inner = ["layers.0." * name => w for (name, w) in cross]
    @test fault("transformer", [MODEL; inner], heads; num_layers = 1) == "invalid_request"
    other = named("unembedding" => (4, 6))
    @test fault("transformer", [MODEL; other], heads; num_layers = 1) == "shape_mismatch"
    shift = named("final_norm.bias" => (4,))
    @test fine("transformer", [MODEL; shift], heads; num_layers = 1)
    one = filter(tensor -> !(tensor[1] in ("attention.w_q", "attention.w_k", "attention.w_v")), block)
    one = [one; context; cross; named("norm_3.weight" => (4,), "attention.w_qkv" => (4, 12))]
    @test fine("block", one, heads)
    @test fault("block", [one; named("cross.w_qkv" => (4, 12))], heads) == "invalid_config"
    segments = Any["segments" => zeros(Int64, 3, 2)]
    @test fault("transformer", [MODEL; segments], heads; num_layers = 1) == "invalid_request"
end
