"""The bounds of varlen: those of each sequence's own attention."""

from typing import Any

import numpy as np

from ..oracle.varlen import sequences
from ..tensors import Tensors
from .arithmetic import Arithmetic
from .attention import bound_sdpa


def bound_varlen(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op varlen."""
    q, v = inputs["q"], inputs["v"]
    output, lse = np.zeros((*q.shape[:2], v.shape[2])), np.zeros(q.shape[:2])
    for rows, sequence in sequences(inputs):
        errors = bound_sdpa(arithmetic, config, sequence)
        output[rows], lse[rows] = errors["output"][0].swapaxes(0, 1), errors["lse"][0].swapaxes(0, 1)
    return {"output": output, "lse": lse}
