"""The bounds of layer norm and RMS norm."""

from typing import Any, NamedTuple

import numpy as np

from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded
from .elementwise import mean, multiply, reciprocal_sqrt, subtract


class LayerNormBound(NamedTuple):
    """Every output of a layer norm, each with its error."""

    output: Bounded  # (..., n)
    mean: Bounded  # (...)
    inv_std: Bounded  # (...)


def bound_layer_norm(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op layer_norm: an exact x."""
    steps = propagate_layer_norm(
        arithmetic, arithmetic.exact(inputs["x"]), inputs.get("weight"), inputs.get("bias"), _eps(config)
    )
    return {name: step.error for name, step in steps._asdict().items()}


def bound_rms_norm(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op rms_norm: an exact x."""
    x = arithmetic.exact(inputs["x"])
    return {"output": propagate_rms_norm(arithmetic, x, inputs.get("weight"), _eps(config)).error}


def propagate_layer_norm(
    arithmetic: Arithmetic, x: Bounded, weight: np.ndarray | None, bias: np.ndarray | None, eps: float
) -> LayerNormBound:
    """(x - mean) / sqrt(var + eps) · weight + bias of an uncertain x (..., n)."""
    center = mean(arithmetic, x, keepdims=True)
    differences = subtract(arithmetic, x, center)

    # All differences of a row are off by the same error of the mean, and sum to 0, so in the sum of squares it
    # comes in squared only: mean((d_i + own_i - shift)²) = mean((d_i + own_i)²) - 2 shift mean(own_i) + shift².
    shift = center.error
    own = x.error + arithmetic.u * (np.abs(differences.value) + differences.error)
    squares = differences.value**2
    spread = 2 * np.abs(differences.value) * own + own**2
    variance = squares.mean(axis=-1, keepdims=True)
    error = spread.mean(axis=-1, keepdims=True) + 2 * shift * own.mean(axis=-1, keepdims=True) + shift**2
    # The square, the sum of n, the division, and eps with its own rounding to the type. A running variance (Welford)
    # errs by sqrt(1 + mean²/variance) as much (Chan, Golub, LeVeque, 1983); one pass over x² by the square of that.
    n = x.value.shape[-1]
    condition = np.sqrt(variance * (variance + center.value**2))
    error = error + arithmetic.gamma(n + 4) * (condition + error + eps) + arithmetic.tiny
    inv_std = reciprocal_sqrt(arithmetic, Bounded(variance + eps, error))

    normal = multiply(arithmetic, differences, inv_std, 2)
    return LayerNormBound(
        _scale_and_shift(arithmetic, normal, weight, bias),
        Bounded(*(part[..., 0] for part in center)),
        Bounded(*(part[..., 0] for part in inv_std)),
    )


def propagate_rms_norm(arithmetic: Arithmetic, x: Bounded, weight: np.ndarray | None, eps: float) -> Bounded:
    """x / sqrt(mean(x²) + eps) · weight of an uncertain x (..., n)."""
    square = mean(arithmetic, multiply(arithmetic, x, x), keepdims=True)
    size = square.value + square.error + eps
    shifted = Bounded(
        square.value + eps, square.error + arithmetic.gamma(2) * size
    )  # eps rounds, and the sum
    normal = multiply(arithmetic, x, reciprocal_sqrt(arithmetic, shifted), 2)
    return _scale_and_shift(arithmetic, normal, weight, None)


def _scale_and_shift(
    arithmetic: Arithmetic, x: Bounded, weight: np.ndarray | None, bias: np.ndarray | None
) -> Bounded:
    """x · weight + bias, each where there is one."""
    if weight is not None:
        x = multiply(arithmetic, x, arithmetic.exact(weight))
    return x if bias is None else arithmetic.add(x, arithmetic.exact(bias))


def _eps(config: dict[str, Any]) -> float:
    return 1e-5 if config.get("eps") is None else float(config["eps"])
