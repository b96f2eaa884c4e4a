"""Softmax of one row over the slots that take part."""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors


def softmax_row(logits: np.ndarray, sink: float | None = None) -> tuple[np.ndarray, float]:
    """Weights and log-sum-exp of the logits (n,), all of which take part; the sink joins the sum only."""
    terms = logits.tolist() + ([] if sink is None else [sink])
    if not terms:
        return np.zeros(0), -math.inf
    if logits.size == 0:
        return np.zeros(0), float(terms[0])
    if any(math.isnan(z) or z == math.inf for z in terms):
        return np.full(logits.size, math.nan), math.nan
    top = max(terms)
    total = math.fsum(math.exp(z - top) for z in terms)
    weights = np.array([math.exp(z - top) / total for z in logits.tolist()])
    return weights, top + math.log(total)


def answer_softmax(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """Softmax over the last axis of x; slots of -inf take no part."""
    x = inputs["x"].astype(np.float64)
    output = np.zeros(x.shape)
    lse = np.zeros(x.shape[:-1])
    for row in np.ndindex(x.shape[:-1]):
        seen = np.flatnonzero(x[row] != -np.inf)
        output[(*row, seen)], lse[row] = softmax_row(x[row][seen])
    return {"output": output, "lse": lse}
