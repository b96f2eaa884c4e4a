"""Features and costs of cast, dropout, merge, varlen and scoring."""

import numpy as np

from ..tensors import NUMPY_DTYPES
from .arguments import Config, Tensors
from .attention import attention_features, attention_flops, head_features

FORMS = {"additive", "dot", "general", "scaled"}


def cast_features(config: Config, inputs: Tensors) -> set[str]:
    """The type that is cast to."""
    return {str(config.get("to"))} & set(NUMPY_DTYPES)


def dropout_features(config: Config, inputs: Tensors) -> set[str]:
    """An offset."""
    return {"offset"} if config.get("offset") is not None else set()


def merge_features(config: Config, inputs: Tensors) -> set[str]:
    """None beside its outputs."""
    return set()


def varlen_features(config: Config, inputs: Tensors) -> set[str]:
    """The conditions, and what the shapes say."""
    found = attention_features(config, inputs, {})
    shapes = [inputs[name].shape for name in ("q", "k", "v") if name in inputs and inputs[name].ndim == 3]
    if len(shapes) == 3:
        q, k, v = shapes
        found |= head_features(q[1], k[1], k[2], v[2])
    return found


def scoring_features(config: Config, inputs: Tensors) -> set[str]:
    """The form, and lengths."""
    return ({str(config.get("form"))} & FORMS) | ({"kv_lengths"} & set(inputs))


def cast_flops(config: Config, inputs: Tensors) -> int:
    """None: a rounding is no arithmetic."""
    return 0


def dropout_flops(config: Config, inputs: Tensors) -> int:
    """A product an element; random words are whole numbers."""
    return int(inputs["x"].size)


def merge_flops(config: Config, inputs: Tensors) -> int:
    """Two products and an addition an element; per row two exponentials, a logarithm and four operations more."""
    return 3 * int(inputs["a_output"].size) + 7 * int(inputs["a_lse"].size)


def varlen_flops(config: Config, inputs: Tensors) -> int:
    """The two products of every sequence."""
    _, Hq, D = inputs["q"].shape
    lengths = zip(np.diff(inputs["cu_seqlens_q"]), np.diff(inputs["cu_seqlens_k"]), strict=True)
    return sum(
        attention_flops(config, (1, Hq, int(Tq), D), int(Tk), inputs["v"].shape[2]) for Tq, Tk in lengths
    )


def scoring_flops(config: Config, inputs: Tensors) -> int:
    """The scores and the weighted sum."""
    (B, Tq, Dq), (_, Tk, Dk) = inputs["q"].shape, inputs["k"].shape
    flops = 2 * B * Tq * Tk * inputs["v"].shape[2]
    if config["form"] == "additive":
        A = inputs["w_v"].size
        flops += 2 * B * A * (Tq * Dq + Tk * Dk) + 4 * B * Tq * Tk * A
    else:
        flops += 2 * B * Tq * Tk * Dk
    if config["form"] == "general":
        flops += 2 * B * Tq * inputs["w"].size
    return int(flops)
