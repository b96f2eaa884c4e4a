"""RMS normalisation over the last axis."""

from . import _rust
from .arrays import Array


def rms_norm(x: Array, weight: Array | None = None, *, eps: float = 1e-5) -> Array:
    """The RMS norm over the last axis of `x` (..., n), n >= 1; same shape.

    weight: (n,), None = ones. eps: >= 0, added to the mean square.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return _rust.rms_norm(x, weight, eps)
