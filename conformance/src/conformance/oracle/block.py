"""A transformer block, from the oracle's own attention, norms and activations, and einsum over token and channel."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..tensors import Tensors
from .activations import gelu, swiglu
from .mha import answer_mha
from .norms import answer_layer_norm, answer_rms_norm

ATTENTION_OPTIONS = ("num_heads", "num_kv_heads", "qk_norm_eps")


def answer_block(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output."""
    x = inputs["x"].astype(np.float64)
    for number, part in enumerate(parts(inputs), start=1):
        weights = below(inputs, f"norm_{number}.")
        if config.get("norm_first") is False:
            x = norm(config, weights, x + _part(config, inputs, part, x))
        else:
            x = x + _part(config, inputs, part, norm(config, weights, x))
    return {"output": x}


def parts(inputs: Tensors) -> tuple[str, ...]:
    """The parts of the block in their order; the n-th one has the n-th norm."""
    return ("attention", "cross", "ff") if "context" in inputs else ("attention", "ff")


def below(inputs: Mapping[str, np.ndarray], prefix: str) -> Tensors:
    """What stands under a dotted name."""
    return {name[len(prefix) :]: x for name, x in inputs.items() if name.startswith(prefix)}


def attention_call(config: dict[str, Any], inputs: Tensors, part: str) -> tuple[dict[str, Any], Tensors]:
    """mha's config, and its tensors but x and context. Cross-attention is neither causal nor turned."""
    options = {name: config[name] for name in ATTENTION_OPTIONS if config.get(name) is not None}
    lengths = "context_lengths"
    if part == "attention":
        options |= {name: config[name] for name in ("causal", "rope") if config.get(name) is not None}
        lengths = "kv_lengths"
    tensors = below(inputs, f"{part}.")
    return options, tensors | ({"kv_lengths": inputs[lengths]} if lengths in inputs else {})


def norm(config: dict[str, Any], weights: Tensors, x: np.ndarray) -> np.ndarray:
    """The block's kind of norm."""
    answer = answer_rms_norm if config.get("norm") == "rms" else answer_layer_norm
    return answer({"eps": config.get("eps")}, weights | {"x": x})["output"]


def _part(config: dict[str, Any], inputs: Tensors, part: str, x: np.ndarray) -> np.ndarray:
    if part == "ff":
        return feed_forward(below(inputs, "ff."), config.get("activation") or "gelu", x)
    options, tensors = attention_call(config, inputs, part)
    tensors["x"] = x
    if part == "cross":
        tensors["context"] = inputs["context"]
    return answer_mha(options, tensors)["output"]


def feed_forward(weights: Tensors, activation: str, x: np.ndarray) -> np.ndarray:
    """W_2 act(W_1 x + b_1) + b_2."""

    def layer(number: int, y: np.ndarray) -> np.ndarray:
        z = np.einsum("btc,fc->btf", y, weights[f"w_{number}"].astype(np.float64))
        return np.asarray(z + weights.get(f"b_{number}", np.zeros(1)).astype(np.float64))

    hidden = layer(1, x)
    if activation == "swiglu":
        hidden = swiglu(hidden, layer(3, x))
    elif activation == "relu":
        hidden = np.where(hidden < 0, 0, hidden)
    else:
        hidden = gelu(hidden, "tanh" if activation == "gelu_tanh" else "none")
    return layer(2, hidden)
