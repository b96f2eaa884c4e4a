"""Structured self-attention: a few learned queries sum up a sequence, each looking elsewhere."""

from typing import NamedTuple

from . import _rust
from .arrays import Array, IntArray


class StructuredSteps(NamedTuple):
    """Every result of one call."""

    output: Array  # (B, R, C)
    weights: Array  # (B, R, T)
    penalty: Array  # (B,), 0 when the rows of the weights are single and different positions


def structured(h: Array, w_1: Array, w_2: Array, *, kv_lengths: IntArray | None = None) -> Array:
    """The summary (B, R, C) of `h` (B, T, C) with weights `w_1` (A, C) and `w_2` (R, A).

    kv_lengths: int64 (B,), how many positions of each row exist; None = all.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return structured_steps(h, w_1, w_2, kv_lengths=kv_lengths).output


def structured_steps(
    h: Array, w_1: Array, w_2: Array, *, kv_lengths: IntArray | None = None
) -> StructuredSteps:
    """`structured` with its weights and their penalty; same arguments and errors."""
    return StructuredSteps(*_rust.structured(h, w_1, w_2, kv_lengths))
