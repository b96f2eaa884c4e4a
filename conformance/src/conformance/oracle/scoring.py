"""Attention with other scores, one query and one key at a time."""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors
from .softmax import softmax_row


def answer_scoring(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of scoring: output, weights, scores."""
    x = {name: t.astype(np.float64) if t.dtype.kind == "f" else t for name, t in inputs.items()}
    B, Tq, _ = x["q"].shape
    Tk, Dv = x["v"].shape[1:]
    scores, weights = np.zeros((B, Tq, Tk)), np.zeros((B, Tq, Tk))
    output = np.zeros((B, Tq, Dv))
    for b, i in np.ndindex(B, Tq):
        for j in range(Tk):
            scores[b, i, j] = _score(config["form"], x, x["q"][b, i], x["k"][b, j])
        length = int(x["kv_lengths"][b]) if "kv_lengths" in x else Tk
        keys = [j for j in range(length) if scores[b, i, j] != -math.inf]
        weights[b, i, keys], _ = softmax_row(scores[b, i, keys])
        for j in keys:
            output[b, i] += weights[b, i, j] * x["v"][b, j]
    return {"output": output, "weights": weights, "scores": scores}


def _score(form: str, x: Tensors, q: np.ndarray, k: np.ndarray) -> float:
    if form == "additive":  # Bahdanau et al., 2015
        return float(np.sum(x["w_v"] * np.tanh(x["w_q"] @ q + x["w_k"] @ k)))
    if form == "general":  # Luong et al., 2015
        return float(np.sum(x["w"] * np.outer(q, k)))
    return float(np.sum(q * k)) / (math.sqrt(q.size) if form == "scaled" else 1)
