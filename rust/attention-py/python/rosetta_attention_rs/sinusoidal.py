"""Sinusoidal position encoding: a fixed pattern for each position, added to the input."""

from typing import NamedTuple

from . import _rust
from .arrays import Array, IntArray


class SinusoidalSteps(NamedTuple):
    """The output of one call, and the table that was added."""

    output: Array  # (B, T, C)
    table: Array  # (B, T, C)


def sinusoidal(
    x: Array,
    *,
    positions: IntArray | None = None,
    offset: int = 0,
    base: float = 10000.0,
    halves: bool = False,
) -> Array:
    """`x` (B, T, C), C even, plus the table: (B, T, C).

    positions: int64 (B, T); None = offset, offset + 1, ... halves: all sines, then all cosines.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return sinusoidal_steps(x, positions=positions, offset=offset, base=base, halves=halves).output


def sinusoidal_steps(
    x: Array,
    *,
    positions: IntArray | None = None,
    offset: int = 0,
    base: float = 10000.0,
    halves: bool = False,
) -> SinusoidalSteps:
    """`sinusoidal` with its table; same arguments and errors."""
    return SinusoidalSteps(*_rust.sinusoidal(x, positions, offset, base, halves))
