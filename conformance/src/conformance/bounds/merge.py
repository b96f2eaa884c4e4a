"""The bounds of merge: a softmax over two exact logits, and a sum of two."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded
from .softmax import bound_softmax


def bound_merge(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op merge. A state beside an empty one is unchanged, bit for bit."""
    logits = np.stack([inputs["a_lse"], inputs["b_lse"]], axis=-1).astype(np.float64)
    shown = logits != -np.inf
    weights, lse = bound_softmax(arithmetic, arithmetic.exact(logits), shown, None)
    outputs = np.stack([inputs["a_output"], inputs["b_output"]], axis=-2)
    states = arithmetic.exact(np.where(shown[..., None], outputs, 0))  # (..., 2, Dv)
    mixed = arithmetic.matmul(Bounded(*(part[..., None, :] for part in weights)), states)
    both = shown.all(axis=-1)
    return {
        "output": np.where(both[..., None], mixed.error[..., 0, :], 0),
        "lse": np.where(both, lse.error, 0),
    }
