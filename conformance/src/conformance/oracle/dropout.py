"""Dropout, element by element."""

import math
from fractions import Fraction
from typing import Any

import numpy as np

from ..tensors import Tensors
from .philox import philox_stream


def answer_dropout(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of dropout: output, keep."""
    x = inputs["x"].astype(np.float64)
    keep = kept(config, x.shape, int(config.get("offset") or 0))
    return {"output": drop(x, keep, config["p"]), "keep": keep}


def kept(config: dict[str, Any], shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
    """bool: which elements stay, by their place in row-major order; config has p and seed."""
    threshold = math.ceil(Fraction(config["p"]) * 2**32)
    words = philox_stream(int(config["seed"]), offset, math.prod(shape))
    return np.array([word >= threshold for word in words], bool).reshape(shape)


def drop(x: np.ndarray, keep: np.ndarray, p: float) -> np.ndarray:
    """What stays is divided by the chance that it stays; the rest is 0, whatever it was."""
    output = np.zeros(x.shape)
    output[keep] = x[keep] / (1 - p) if p < 1 else 0
    return output
