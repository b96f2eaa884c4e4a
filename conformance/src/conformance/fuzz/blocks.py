"""Questions about norms, activations, blocks and stacks of them."""

from typing import Any

import numpy as np

from ..cases.block_weights import under
from ..cases.draft import Draft
from ..tensors import Tensors
from .attention import layer
from .draws import Chooser


def layer_norm(choose: Chooser) -> Draft:
    """With and without weight and bias."""
    x = choose.plain(choose.length(), 1 + choose.width())
    inputs = {"x": x} | {name: choose.plain(x.shape[1]) for name in ("weight", "bias") if choose.maybe()}
    return Draft("layer_norm", "layer_norm", inputs, {"eps": choose.one_of([1e-5, 0.1])})


def rms_norm(choose: Chooser) -> Draft:
    """With and without weight."""
    x = choose.plain(choose.length(), choose.width())
    inputs = {"x": x} | ({"weight": choose.plain(x.shape[1])} if choose.maybe() else {})
    return Draft("rms_norm", "rms_norm", inputs, {"eps": choose.one_of([1e-5, 0.1])})


def gelu(choose: Chooser) -> Draft:
    """Both forms."""
    config = {"approximate": choose.one_of(["none", "tanh"])}
    return Draft("gelu", "gelu", {"x": choose.floats(choose.length(), choose.width())}, config)


def swiglu(choose: Chooser) -> Draft:
    """Any alpha."""
    shape = (choose.length(), choose.width())
    inputs = {"a": choose.floats(*shape), "b": choose.floats(*shape)}
    return Draft("swiglu", "swiglu", inputs, {"alpha": choose.one_of([1, 0.5, 2])})


def block(choose: Chooser) -> Draft:
    """Encoder and decoder blocks."""
    B, T, C = choose.batch(), choose.short(), 2 * choose.integer(1, 3)
    config = _block_config(choose)
    cross = choose.rarely()
    inputs: Tensors = {"x": choose.plain(B, T, C)}
    if cross:
        Tk, Cc = choose.short(), choose.width()
        inputs["context"] = choose.plain(B, Tk, Cc)
        if choose.maybe():
            inputs["context_lengths"] = choose.integers(0, Tk, B)
        inputs |= under("cross", layer(choose, C, Cc, config["num_heads"], config["num_kv_heads"], 2, 2))
    if choose.rarely():
        inputs["kv_lengths"] = choose.integers(0, T, B)
    inputs |= block_weights(choose, C, config, norms=3 if cross else 2)
    return Draft("block", "block", inputs, config)


def transformer(choose: Chooser) -> Draft:
    """Small stacks."""
    B, T, C, V, layers = (
        choose.batch(),
        choose.short(),
        2 * choose.integer(1, 3),
        5,
        choose.batch(),
    )
    config = _block_config(choose) | {"num_layers": layers}
    inputs: Tensors = {"tokens": choose.integers(0, V - 1, B, T), "embedding": choose.plain(V, C)}
    if choose.maybe():
        inputs["position_embedding"] = choose.plain(T + choose.integer(0, 2), C)
    if choose.rarely():
        inputs |= {"segments": choose.integers(0, 1, B, T), "segment_embedding": choose.plain(2, C)}
    for name in ("embedding_norm", "final_norm"):
        if choose.maybe():
            inputs |= _norm(choose, name, C, config)
    for number in range(layers):
        inputs |= under(f"layers.{number}", block_weights(choose, C, config, norms=2))
    if choose.rarely():
        inputs["unembedding"] = choose.plain(V, C)
    if choose.rarely():
        inputs["kv_lengths"] = choose.integers(0, T, B)
    return Draft("transformer", "transformer", inputs, config)


def _block_config(choose: Chooser) -> dict[str, Any]:
    Hkv = choose.integer(1, 2)
    return {
        "num_heads": Hkv * choose.integer(1, 2),
        "num_kv_heads": Hkv,
        "causal": choose.maybe(),
        "norm": choose.one_of(["layer", "rms"]),
        "norm_first": choose.one_of([True, False]),
        "activation": choose.one_of(["gelu", "gelu_tanh", "relu", "swiglu"]),
        "eps": choose.one_of([1e-5, 0.1]),
    } | ({"rope": {"interleaved": choose.maybe()}} if choose.rarely() else {})


def block_weights(choose: Chooser, C: int, config: dict[str, Any], *, norms: int) -> Tensors:
    """Self-attention with heads of 2, a feed-forward layer, and the norms."""
    weights = under("attention", layer(choose, C, C, config["num_heads"], config["num_kv_heads"], 2, 2))
    for number in range(1, norms + 1):
        weights |= _norm(choose, f"norm_{number}", C, config)
    F = choose.width()
    expanding = ("1", "3") if config["activation"] == "swiglu" else ("1",)
    for part in expanding:
        weights[f"ff.w_{part}"] = choose.plain(F, C) / np.sqrt(C)
    weights["ff.w_2"] = choose.plain(C, F) / np.sqrt(F)
    if choose.maybe():
        weights |= {f"ff.b_{part}": choose.plain(F) / 4 for part in expanding} | {
            "ff.b_2": choose.plain(C) / 4
        }
    return weights


def _norm(choose: Chooser, name: str, C: int, config: dict[str, Any]) -> Tensors:
    weights = {f"{name}.weight": 1 + choose.plain(C) / 4}
    return weights | ({f"{name}.bias": choose.plain(C) / 4} if config["norm"] == "layer" else {})
