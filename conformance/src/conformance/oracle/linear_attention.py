"""Linear attention as what it is: a weighted mean over the keys that a query sees, one weight at a time."""

from typing import Any

import numpy as np

from ..tensors import Tensors


def answer_linear_attention(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output, and state and norm with all keys in them."""
    q, k, v = (inputs[name].astype(np.float64) for name in ("q", "k", "v"))
    B, Hq, Tq, D = q.shape
    _, Hkv, Tk, Dv = v.shape
    group = Hq // max(Hkv, 1)
    state = inputs.get("state", np.zeros((B, Hkv, D, Dv))).astype(np.float64)
    norm = inputs.get("norm", np.zeros((B, Hkv, D))).astype(np.float64)

    output = np.zeros((B, Hq, Tq, Dv))
    for b, h, i in np.ndindex(B, Hq, Tq):
        g = h // group
        feature = elu_plus_one(q[b, h, i])
        numerator, denominator = feature @ state[b, g], float(feature @ norm[b, g])
        for j in range(i + 1 if config.get("causal") else Tk):
            weight = float(feature @ elu_plus_one(k[b, g, j]))
            numerator = numerator + weight * v[b, g, j]
            denominator += weight
        output[b, h, i] = 0 if denominator == 0 else numerator / denominator
    features = elu_plus_one(k)
    return {
        "output": output,
        "state": state + np.einsum("bhtd,bhte->bhde", features, v),
        "norm": norm + features.sum(axis=2),
    }


def elu_plus_one(x: np.ndarray) -> np.ndarray:
    """x + 1 above 0, e^x below."""
    return np.where(x > 0, x + 1, np.exp(x))
