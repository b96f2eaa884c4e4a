"""Features and costs of softmax, sdpa and mha."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .arguments import Config, Tensors


def softmax_features(config: Config, inputs: Tensors) -> set[str]:
    """None beside its outputs."""
    return set()


def sdpa_features(config: Config, inputs: Tensors) -> set[str]:
    """The conditions, and what the shapes say."""
    found = attention_features(config, inputs, inputs) | ({"sinks"} & set(inputs))
    heads = [inputs[name].shape for name in ("q", "k", "v") if name in inputs and inputs[name].ndim == 4]
    if len(heads) == 3:
        q, k, v = heads
        found |= head_features(q[1], k[1], k[3], v[3])
    return found


def mha_features(config: Config, inputs: Tensors) -> set[str]:
    """The conditions, and what the layer has beside its four weights."""
    found = attention_features(config, inputs, inputs)
    found |= {"context", "positions", "head_mask"} & set(inputs)
    found |= {"rope"} if config.get("rope") is not None else set()
    found |= {"qk_norm"} if {"q_norm", "k_norm"} & set(inputs) else set()
    found |= {"packed"} if "w_qkv" in inputs else set()
    if any(name in inputs for name in ("b_q", "b_k", "b_v", "b_o", "b_qkv")):
        found.add("projection_bias")
    if config.get("num_kv_heads") not in (None, config.get("num_heads")):
        found.add("gqa")
    if "w_o" in inputs and "w_q" in inputs and inputs["w_o"].shape[1] != inputs["w_q"].shape[0]:
        found.add("value_dim")
    return found


def attention_features(config: Mapping[str, Any], inputs: Tensors, named: Mapping[str, Any]) -> set[str]:
    """The options of attention wherever it stands; `named`: what has a mask, a bias or lengths."""
    found = {
        name for name in ("window", "softcap", "scale", "q_offset", "dropout") if config.get(name) is not None
    }
    found |= {"causal"} if config.get("causal") else set()
    found |= {name for name in ("mask", "bias", "kv_lengths") if name in named}
    return found | ({"q_offset_tensor"} if "q_offset" in inputs else set())


def head_features(Hq: int, Hkv: int, D: int, Dv: int) -> set[str]:
    """Groups of heads, and values of a size of their own."""
    return ({"gqa"} if Hq != Hkv else set()) | ({"value_dim"} if Dv != D else set())


def softmax_flops(config: Config, inputs: Tensors) -> int:
    """Per element a comparison, a subtraction, an exponential, an addition, a division."""
    return 5 * int(inputs["x"].size)


def sdpa_flops(config: Config, inputs: Tensors) -> int:
    """The two products; causal counts what is visible."""
    return attention_flops(config, inputs["q"].shape, inputs["k"].shape[2], inputs["v"].shape[3])


def mha_flops(config: Config, inputs: Tensors) -> int:
    """The projections and the attention."""
    x, context = inputs["x"], inputs.get("context", inputs["x"])
    weights = ((x, "w_qkv"), (x, "w_q"), (context, "w_k"), (context, "w_v"), (x, "w_o"))
    projections: int = sum(
        2 * source.shape[0] * source.shape[1] * inputs[w].size for source, w in weights if w in inputs
    )
    heads = config["num_heads"]
    Dv = inputs["w_o"].shape[1] // heads
    D = inputs["w_q"].shape[0] // heads if "w_q" in inputs else Dv
    return projections + attention_flops(config, (x.shape[0], heads, x.shape[1], D), context.shape[1], Dv)


def attention_flops(config: Mapping[str, Any], q_shape: tuple[int, ...], Tk: int, Dv: int) -> int:
    """Of q (B,Hq,Tq,D) over Tk keys; a multiply-add is two."""
    B, Hq, Tq, D = q_shape
    pairs = Tq * Tk
    if config.get("causal"):
        pairs = int(np.clip(np.arange(Tq) + 1 + (config.get("q_offset") or 0), 0, Tk).sum())
    return 2 * B * Hq * pairs * (D + Dv)
