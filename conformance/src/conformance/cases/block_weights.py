"""The weights of a block, of the size that keeps the variance at 1."""

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors


def attention_weights(
    draw: Draw, C: int, Cc: int, H: int, Hkv: int, D: int, *, biases: bool, qk_norm: bool = False
) -> Tensors:
    """mha's weights, of the size that keeps the variance at 1."""
    weights = {
        "w_q": 1.5 * draw.normal(H * D, C) / np.sqrt(C),
        "w_k": draw.normal(Hkv * D, Cc) / np.sqrt(Cc),
        "w_v": draw.normal(Hkv * D, Cc) / np.sqrt(Cc),
        "w_o": draw.normal(C, H * D) / np.sqrt(H * D),
    }
    if biases:
        weights |= {f"b_{name[2]}": 0.5 * draw.normal(w.shape[0]) for name, w in weights.items()}
    if qk_norm:
        weights |= {name: 1 + 0.5 * draw.normal(D) for name in ("q_norm", "k_norm")}
    return weights


def block_weights(
    name: str,
    C: int = 6,
    F: int = 9,
    H: int = 2,
    Hkv: int = 2,
    D: int = 4,
    Cc: int | None = None,
    *,
    norm: str = "layer",
    activation: str = "gelu",
    biases: bool = True,
    qk_norm: bool = False,
) -> Tensors:
    """A block's weights under their dotted names; Cc: the width of a context."""
    draw = Draw(name)
    weights = under("attention", attention_weights(draw, C, C, H, Hkv, D, biases=biases, qk_norm=qk_norm))
    if Cc is not None:
        weights |= under("cross", attention_weights(draw, C, Cc, H, Hkv, D, biases=biases, qk_norm=qk_norm))
    for number in range(1, 3 if Cc is None else 4):
        weights[f"norm_{number}.weight"] = 1 + 0.5 * draw.normal(C)
        if norm == "layer":
            weights[f"norm_{number}.bias"] = 0.5 * draw.normal(C)
    layers = {"1": (F, C), "2": (C, F)} | ({"3": (F, C)} if activation == "swiglu" else {})
    for layer, (rows, columns) in layers.items():
        weights[f"ff.w_{layer}"] = draw.normal(rows, columns) / np.sqrt(columns)
        if biases:
            weights[f"ff.b_{layer}"] = 0.5 * draw.normal(rows)
    return weights


def under(prefix: str, weights: Tensors) -> Tensors:
    """The weights under a dotted name."""
    return {f"{prefix}.{name}": x for name, x in weights.items()}
