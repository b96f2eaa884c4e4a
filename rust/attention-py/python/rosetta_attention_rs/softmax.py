"""Softmax over the last axis, with its log-sum-exp."""

from typing import NamedTuple

from . import _rust
from .arrays import Array


class SoftmaxSteps(NamedTuple):
    """The weights of one call and their log-sum-exp."""

    weights: Array  # (..., n)
    lse: Array  # (...)


def softmax(x: Array) -> Array:
    """Softmax over the last axis of `x` (..., n), n >= 0; same shape and dtype. Raises ShapeMismatch for rank 0."""
    return softmax_lse(x).weights


def softmax_lse(x: Array, sink: Array | None = None) -> SoftmaxSteps:
    """Softmax and log-sum-exp of the last axis.

    x: (..., n). sink: broadcastable to (...), a logit that joins the sum of its row and has no slot of its own.
    Returns weights (..., n) and lse (...), natural logarithm. Raises ShapeMismatch, DtypeMismatch.
    """
    return SoftmaxSteps(*_rust.softmax_lse(x, sink))
