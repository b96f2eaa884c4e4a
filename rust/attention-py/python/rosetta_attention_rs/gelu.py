"""The Gaussian error linear unit."""

from . import _rust
from .arrays import Array


def gelu(x: Array, *, approximate: str = "none") -> Array:
    """GELU of every element of `x`; same shape.

    approximate: "none" is the definition, with the error function; "tanh" is close to it.
    Raises DtypeMismatch, InvalidConfig.
    """
    return _rust.gelu(x, approximate)
