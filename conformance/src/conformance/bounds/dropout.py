"""The bounds of dropout: which elements stay is exact, and those are multiplied by a rounded factor."""

from typing import Any

import numpy as np

from ..oracle.dropout import kept
from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded

FACTOR_ROUNDINGS = 2  # the quotient 1/(1-p), rounded to the compute type; and the product with it


def bound_dropout(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op dropout: exact elements."""
    keep = kept(config, inputs["x"].shape, int(config.get("offset") or 0))
    return {"output": propagate_drop(arithmetic, arithmetic.exact(inputs["x"]), keep, config["p"]).error}


def propagate_drop(arithmetic: Arithmetic, x: Bounded, keep: np.ndarray, p: float) -> Bounded:
    """What stays of uncertain elements. p = 0 returns its input, and a factor of 1 is exact."""
    if p == 0:
        return x
    factor = 1 / (1 - p) if p < 1 else 0.0
    value, error = x.value * factor, x.error * factor
    error = error + arithmetic.gamma(FACTOR_ROUNDINGS) * (np.abs(value) + error) + arithmetic.tiny
    return Bounded(np.where(keep, value, 0), np.where(keep, error, 0))
