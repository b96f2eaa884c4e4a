"""The gated linear unit with a swish gate."""

from . import _rust
from .arrays import Array


def swiglu(a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    """a · sigmoid(alpha · a) · b, element by element; `a` is the gate, and `b` has its shape.

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return _rust.swiglu(a, b, alpha)
