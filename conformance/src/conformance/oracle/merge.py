"""Two partial attentions in one (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018)."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .softmax import softmax_row


def answer_merge(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of merge: output, lse. A state weighs what its log-sum-exp weighs in a softmax of the two."""
    states = [(inputs[f"{name}_output"].astype(np.float64), inputs[f"{name}_lse"]) for name in ("a", "b")]
    output = np.zeros(states[0][0].shape)
    lse = np.zeros(output.shape[:-1])
    for row in np.ndindex(lse.shape):
        seen = [(out[row], float(total[row])) for out, total in states if total[row] != -np.inf]
        weights, lse[row] = softmax_row(np.array([total for _, total in seen]))
        if len(seen) == 1 and np.isfinite(lse[row]):
            output[row] = seen[0][0]  # untouched, whatever is in it
        elif np.isnan(lse[row]):
            output[row] = np.nan
        elif seen:
            output[row] = sum(weight * out for weight, (out, _) in zip(weights, seen, strict=True))
    return {"output": output, "lse": lse}
