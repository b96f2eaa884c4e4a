"""Softmax over the last axis, with its log-sum-exp."""

from . import _rust
from .arrays import Array


def softmax(x: Array) -> Array:
    """Softmax over the last axis of `x` (..., n), n >= 0; same shape and dtype. Raises ShapeMismatch for rank 0."""
    return softmax_lse(x)[0]


def softmax_lse(x: Array, sink: Array | None = None) -> tuple[Array, Array]:
    """Softmax and log-sum-exp of the last axis.

    x: (..., n). sink: broadcastable to (...), a logit that joins the sum of its row and has no slot of its own.
    Returns weights (..., n) and lse (...), natural logarithm. Raises ShapeMismatch, DtypeMismatch.
    """
    return _rust.softmax_lse(x, sink)
