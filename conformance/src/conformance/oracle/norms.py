"""Layer norm and RMS norm, row by row, with sums that are exact."""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors


def answer_layer_norm(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output, mean, inv_std. The variance is that of the differences, so a large mean costs nothing."""
    x = inputs["x"].astype(np.float64)
    n = x.shape[-1]
    eps = _eps(config, 1e-5)
    output, mean, inv_std = np.zeros(x.shape), np.zeros(x.shape[:-1]), np.zeros(x.shape[:-1])
    for row in np.ndindex(x.shape[:-1]):
        mean[row] = _sum(x[row]) / n
        differences = x[row] - mean[row]
        inv_std[row] = 1 / np.sqrt(np.float64(_sum(differences**2) / n + eps))
        output[row] = differences * inv_std[row]
    if "weight" in inputs:
        output = output * inputs["weight"].astype(np.float64)
    if "bias" in inputs:
        output = output + inputs["bias"].astype(np.float64)
    return {"output": output, "mean": mean, "inv_std": inv_std}


def answer_rms_norm(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output."""
    return {"output": rms_norm(inputs["x"], inputs.get("weight"), _eps(config, 1e-5))}


def rms_norm(x: np.ndarray, weight: np.ndarray | None, eps: float) -> np.ndarray:
    """Each row over the root of its mean square."""
    x = x.astype(np.float64)
    output = np.zeros(x.shape)
    for row in np.ndindex(x.shape[:-1]):
        output[row] = x[row] / np.sqrt(np.float64(_sum(x[row] ** 2) / x.shape[-1] + eps))
    return output if weight is None else output * weight.astype(np.float64)


def _eps(config: dict[str, Any], default: float) -> float:
    return default if config.get("eps") is None else float(config["eps"])


def _sum(row: np.ndarray) -> float:
    """Without a rounding in between; what is not finite has no exact sum."""
    return math.fsum(row.tolist()) if np.isfinite(row).all() else float(row.sum())
