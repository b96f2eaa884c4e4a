"""The bound of structured self-attention."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded, transpose
from .elementwise import multiply, subtract, tanh, total
from .softmax import bound_softmax


def bound_structured(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op structured."""
    h, w_1, w_2 = (arithmetic.exact(inputs[name]) for name in ("h", "w_1", "w_2"))
    B, T, _ = h.value.shape
    R = w_2.value.shape[0]
    lengths = inputs.get("kv_lengths", np.full(B, T))
    shown = np.broadcast_to(np.arange(T) < lengths[:, None, None], (B, R, T))

    hidden = tanh(arithmetic, arithmetic.matmul(h, transpose(w_1)))
    scores = transpose(arithmetic.matmul(hidden, transpose(w_2)))
    weights, _ = bound_softmax(arithmetic, scores, shown, None)
    output = arithmetic.matmul(weights, h)
    overlap = subtract(
        arithmetic, arithmetic.matmul(weights, transpose(weights)), arithmetic.exact(np.eye(R))
    )
    squares = multiply(arithmetic, overlap, overlap)
    penalty = total(arithmetic, Bounded(*(part.reshape(B, R * R) for part in squares)))
    some = np.asarray(shown.any(axis=-1, keepdims=True))
    return {
        "output": np.where(some, output.error, 0),
        "weights": weights.error,
        "penalty": penalty.error,
    }
