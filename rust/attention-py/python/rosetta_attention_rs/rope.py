"""Rotary position embedding: pairs of channels are turned by an angle that grows with the position."""

from dataclasses import dataclass
from typing import NamedTuple

from . import _rust
from .arrays import Array, IntArray
from .rope_scaling import Scaling


@dataclass(frozen=True)
class Rope:
    """How to rotate.

    base: the slowest pair turns about once in 2π·base positions. interleaved: pairs of neighbours, instead of one
    channel of each half. rotary_dim: R, even; None = all of D. offset: position of the first row. scaling: of the
    frequencies.
    """

    base: float = 10000.0
    interleaved: bool = False
    rotary_dim: int | None = None
    offset: int = 0
    scaling: Scaling | None = None


ROPE = Rope()


class RopeSteps(NamedTuple):
    """The output of one call, and the cosines and sines that it applied."""

    output: Array  # (B, H, T, D)
    cos: Array  # (B, T, R/2)
    sin: Array  # (B, T, R/2)


def rope(
    x: Array,
    options: Rope = ROPE,
    *,
    positions: IntArray | None = None,
    cos: Array | None = None,
    sin: Array | None = None,
) -> Array:
    """`x` (B, H, T, D) rotated, each row by its position: (B, H, T, D).

    positions: int64 (B, T); None = options.offset, options.offset + 1, ...
    cos, sin: tables (P, R/2) indexed by position, which take the place of base and scaling.

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return rope_steps(x, options, positions=positions, cos=cos, sin=sin).output


def rope_steps(
    x: Array,
    options: Rope = ROPE,
    *,
    positions: IntArray | None = None,
    cos: Array | None = None,
    sin: Array | None = None,
) -> RopeSteps:
    """`rope` with the cosines and sines; same arguments and errors."""
    return RopeSteps(*_rust.rope(x, options, positions, cos, sin))
