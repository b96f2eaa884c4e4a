"""Structured self-attention, annotation by annotation over the positions that exist."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .softmax import softmax_row


def answer_structured(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output, weights, penalty."""
    h, w_1, w_2 = (inputs[name].astype(np.float64) for name in ("h", "w_1", "w_2"))
    B, T, C = h.shape
    R = w_2.shape[0]
    output, weights, penalty = np.zeros((B, R, C)), np.zeros((B, R, T)), np.zeros(B)
    for b in range(B):
        length = int(inputs["kv_lengths"][b]) if "kv_lengths" in inputs else T
        for r in range(R):
            scores = np.array([w_2[r] @ np.tanh(w_1 @ h[b, t]) for t in range(length)])
            weights[b, r, :length], _ = softmax_row(scores)
            for t in range(length):
                output[b, r] += weights[b, r, t] * h[b, t]
        for r, s in np.ndindex(R, R):
            overlap = sum(weights[b, r, t] * weights[b, s, t] for t in range(length))
            penalty[b] += (overlap - (r == s)) ** 2
    return {"output": output, "weights": weights, "penalty": penalty}
