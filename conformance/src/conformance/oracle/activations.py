"""GELU and SwiGLU, each in another form than that of the ports."""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def answer_gelu(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output."""
    return {"output": gelu(inputs["x"].astype(np.float64), config.get("approximate") or "none")}


def gelu(x: np.ndarray, approximate: str) -> np.ndarray:
    """x/2 erfc(-x / sqrt 2), which loses nothing for negative x.

    With tanh: x sigmoid(2 z), since 1 + tanh z = 2 sigmoid(2 z).
    """
    if approximate == "none":
        return np.asarray(x / 2 * _erfc(-x / math.sqrt(2)))
    z = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.asarray(x * sigmoid(2 * z))


def answer_swiglu(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output."""
    alpha = 1.0 if config.get("alpha") is None else float(config["alpha"])
    a, b = inputs["a"].astype(np.float64), inputs["b"].astype(np.float64)
    return {"output": swiglu(a, b, alpha)}


def swiglu(a: np.ndarray, b: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    """a sigmoid(alpha a) b."""
    return np.asarray(a * sigmoid(alpha * a) * b)


def sigmoid(z: np.ndarray) -> np.ndarray:
    """By the side on which the exponential is at most 1."""
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + small), np.where(np.isnan(z), z, small / (1 + small)))
