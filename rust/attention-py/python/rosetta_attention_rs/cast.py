"""The four float types, and the way from one to another."""

from . import _rust
from .arrays import Array

HALVES = ("float16", "bfloat16")


def cast(x: Array, to: str) -> Array:
    """`x` in the type `to`: "f16", "bf16", "f32" or "f64".

    To the nearest value, half to even, in one step; what is beyond the largest finite value plus half a step becomes
    infinite, and NaN stays NaN. Raises DtypeMismatch, Unsupported.
    """
    return _rust.cast(x, to)


def widen(x: Array) -> Array:
    """Half types as f32, which is exact; the wide types as they are."""
    return cast(x, "f32") if x.dtype.name in HALVES else x


def narrow(x: Array, to: str) -> Array:
    """`x`, of f32 or f64, in the type `to`."""
    return cast(x, to)
