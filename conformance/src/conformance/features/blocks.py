"""Features and costs of latent attention, norms, activations, blocks, whole stacks, and the cache write."""

import numpy as np

from ..oracle.block import below
from .arguments import Config, Tensors
from .attention import attention_flops, mha_flops


def mla_features(config: Config, inputs: Tensors) -> set[str]:
    """A latent of the queries too, the norms of both, and what attention has beside them."""
    found = {name for name in ("scale", "rope") if config.get(name) is not None}
    found |= {"causal"} if config.get("causal") else set()
    found |= {"kv_lengths", "kv_norm", "q_norm"} & set(inputs)
    found |= {"query_latent"} if "w_dq" in inputs else set()
    if {"w_uk", "w_uv"} <= set(inputs) and inputs["w_uk"].shape[0] != inputs["w_uv"].shape[0]:
        found.add("value_dim")
    return found


def layer_norm_features(config: Config, inputs: Tensors) -> set[str]:
    """A scale, a shift, and an eps of its own."""
    return ({"weight", "bias"} & set(inputs)) | ({"eps"} if config.get("eps") is not None else set())


def rms_norm_features(config: Config, inputs: Tensors) -> set[str]:
    """A scale, and an eps of its own."""
    return layer_norm_features(config, inputs) - {"bias"}


def gelu_features(config: Config, inputs: Tensors) -> set[str]:
    """The form by tanh."""
    return {"tanh"} if config.get("approximate") == "tanh" else set()


def swiglu_features(config: Config, inputs: Tensors) -> set[str]:
    """An alpha of its own."""
    return {"alpha"} if config.get("alpha") is not None else set()


def block_features(config: Config, inputs: Tensors) -> set[str]:
    """What its parts have."""
    found = {"context", "kv_lengths", "context_lengths"} & set(inputs)
    found |= {"causal"} if config.get("causal") else set()
    found |= {"rope"} if config.get("rope") is not None else set()
    if config.get("num_kv_heads") not in (None, config.get("num_heads")):
        found.add("gqa")
    found |= {"rms"} if config.get("norm") == "rms" else set()
    found |= {"post_norm"} if config.get("norm_first") is False else set()
    found |= {"gelu_tanh", "relu", "swiglu"} & {str(config.get("activation"))}
    parts = {name.rsplit(".", 1)[-1] for name in inputs if "norm" not in name.rsplit(".", 2)[-2:][0]}
    found |= {"biases"} if any(part.startswith("b_") for part in parts) else set()
    return found | ({"qk_norm"} if {"q_norm", "k_norm"} & parts else set())


def transformer_features(config: Config, inputs: Tensors) -> set[str]:
    """What its blocks have, and what stands around them."""
    found = block_features(config, inputs)
    found |= {"position_embedding", "segments", "unembedding"} & set(inputs)
    return found | {
        name
        for name in ("embedding_norm", "final_norm")
        if f"{name}.weight" in inputs or f"{name}.bias" in inputs
    }


def cache_write_features(config: Config, inputs: Tensors) -> set[str]:
    """Indices, and a buffer that goes round."""
    return ({"write_indices"} & set(inputs)) | ({"circular"} if config.get("circular") else set())


def norm_flops(config: Config, inputs: Tensors) -> int:
    """Per element a difference, a square, two additions, two products."""
    return 6 * int(inputs["x"].size)


def gelu_flops(config: Config, inputs: Tensors) -> int:
    """Per element the function, a sum, three products."""
    return 5 * int(inputs["x"].size)


def swiglu_flops(config: Config, inputs: Tensors) -> int:
    """Per element the exponential, a sum, a division, three products."""
    return 6 * int(inputs["a"].size)


def mla_flops(config: Config, inputs: Tensors) -> int:
    """Every projection once a token, and the attention over expanded keys and values."""
    B, T, _ = inputs["x"].shape
    weights = [int(x.size) for name, x in inputs.items() if name.startswith("w_")]
    heads = config["num_heads"]
    D, Dv = inputs["w_q"].shape[0] // heads, inputs["w_uv"].shape[0] // heads
    projections = 2 * B * T * sum(weights)
    return int(projections + attention_flops(config, (B, heads, T, D), T, Dv))


def block_flops(config: Config, inputs: Tensors) -> int:
    """Its attentions and its feed-forward network."""
    x = inputs["x"]
    return sum(
        _attention(config, inputs, part, x, inputs["context"] if part == "cross" else x)
        for part in ("attention", "cross")
        if f"{part}.w_o" in inputs
    ) + _feed_forward(inputs, x.shape[0] * x.shape[1])


def transformer_flops(config: Config, inputs: Tensors) -> int:
    """Its blocks and the logits."""
    B, T = inputs["tokens"].shape
    V, C = inputs["embedding"].shape
    flops = 2 * B * T * V * C
    for number in range(int(config["num_layers"])):
        layer = below(inputs, f"layers.{number}.")
        flops += block_flops(config, {**layer, "x": np.broadcast_to(np.zeros(()), (B, T, C))})
    return int(flops)


def cache_write_flops(config: Config, inputs: Tensors) -> int:
    """None: it only moves data."""
    return 0


def _attention(config: Config, inputs: Tensors, part: str, x: np.ndarray, context: np.ndarray) -> int:
    weights = below(inputs, f"{part}.")
    causal = {"causal": config.get("causal")} if part == "attention" else {}
    return mha_flops({"num_heads": config["num_heads"], **causal}, {**weights, "x": x, "context": context})


def _feed_forward(inputs: Tensors, tokens: int) -> int:
    return 2 * tokens * sum(int(inputs[f"ff.w_{n}"].size) for n in (1, 2, 3) if f"ff.w_{n}" in inputs)
