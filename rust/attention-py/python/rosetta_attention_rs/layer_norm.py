"""Layer normalisation over the last axis."""

from typing import NamedTuple

from . import _rust
from .arrays import Array


class LayerNormSteps(NamedTuple):
    """The output of one call with what its rows were moved and scaled by."""

    output: Array  # (..., n)
    mean: Array  # (...)
    inv_std: Array  # (...)


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5
) -> Array:
    """The layer norm over the last axis of `x` (..., n), n >= 1; same shape.

    weight, bias: (n,), None = ones and zeros. eps: >= 0, added to the variance, which is over n.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return layer_norm_steps(x, weight, bias, eps=eps).output


def layer_norm_steps(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5
) -> LayerNormSteps:
    """`layer_norm` with its intermediates; same arguments and errors."""
    return LayerNormSteps(*_rust.layer_norm(x, weight, bias, eps))
