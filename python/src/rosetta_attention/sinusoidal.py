"""Sinusoidal position embedding: a table of sines and cosines of the position, added to the input.

    table[p, 2i] = sin(p · base^(-2i/C)),   table[p, 2i+1] = cos(p · base^(-2i/C))

or, with `halves`, all sines before all cosines; both orders are in use.

Letters: B batch, T positions, C model width.

Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
"""

from typing import NamedTuple

import numpy as np

from .arrays import Array, IntArray
from .cast import op
from .checks import check_sinusoidal
from .rope_scaling import rope_frequencies


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


@op
def sinusoidal_steps(
    x: Array,
    *,
    positions: IntArray | None = None,
    offset: int = 0,
    base: float = 10000.0,
    halves: bool = False,
) -> SinusoidalSteps:
    """`sinusoidal` with its table; same arguments and errors."""
    check_sinusoidal("sinusoidal", x, positions=positions, offset=offset, base=base, halves=halves)
    B, T, C = x.shape

    # 1. angles: position times frequency, in float64
    p = np.broadcast_to(offset + np.arange(T) if positions is None else positions, (B, T))  # (B, T)
    angles = p[:, :, None] * rope_frequencies(base, C)  # (B, T, C/2)

    # 2. table: rounded once; a sine and a cosine for each frequency
    table = np.empty_like(x)  # (B, T, C)
    table[..., slice(0, C // 2) if halves else slice(0, C, 2)] = np.sin(angles)
    table[..., slice(C // 2, C) if halves else slice(1, C, 2)] = np.cos(angles)

    # 3. add: to the input as it is
    return SinusoidalSteps(x + table, table)
