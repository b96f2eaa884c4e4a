"""The bounds of attention with other scores."""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded, transpose
from .attention import SCALE_ROUNDINGS
from .elementwise import tanh
from .softmax import bound_softmax


def bound_scoring(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op scoring: exact inputs and weights."""
    x = {name: arithmetic.exact(t) for name, t in inputs.items() if name != "kv_lengths"}
    scores = _scores(arithmetic, config["form"], x)
    B, Tq, Tk = scores.value.shape
    lengths = inputs["kv_lengths"] if "kv_lengths" in inputs else np.full(B, Tk)
    shown = np.broadcast_to(np.arange(Tk) < lengths[:, None, None], (B, Tq, Tk))
    weights, _ = bound_softmax(arithmetic, scores, shown, None)
    output = arithmetic.matmul(weights, x["v"])
    seen = shown.any(axis=-1, keepdims=True)
    return {
        "output": np.where(seen, output.error, 0),
        "weights": weights.error,
        "scores": scores.error,
    }


def _scores(arithmetic: Arithmetic, form: str, x: dict[str, Bounded]) -> Bounded:
    """(B, Tq, Tk)."""
    if form == "additive":
        queries = arithmetic.matmul(x["q"], transpose(x["w_q"]))  # (B, Tq, A)
        keys = arithmetic.matmul(x["k"], transpose(x["w_k"]))  # (B, Tk, A)
        pairs = arithmetic.add(
            Bounded(*(part[:, :, None] for part in queries)), Bounded(*(part[:, None] for part in keys))
        )
        hidden = tanh(arithmetic, pairs)  # (B, Tq, Tk, A)
        return Bounded(*(part[..., 0] for part in arithmetic.matmul(hidden, _column(x["w_v"]))))
    if form == "general":
        return arithmetic.matmul(arithmetic.matmul(x["q"], x["w"]), transpose(x["k"]))
    if form == "dot":
        return arithmetic.matmul(x["q"], transpose(x["k"]))
    scaled = arithmetic.scale(x["q"], 1 / math.sqrt(x["q"].value.shape[-1]))
    return arithmetic.matmul(scaled, transpose(x["k"]), SCALE_ROUNDINGS)


def _column(x: Bounded) -> Bounded:
    return Bounded(*(part[:, None] for part in x))
