"""T5's relative position bias: a learned number for each head and range of distances."""

from typing import NamedTuple

from . import _rust
from .arrays import Array, IntArray


class RelativeBiasSteps(NamedTuple):
    """The output of one call, and the bucket of every query and key."""

    output: Array  # (B, H, Tq, Tk)
    buckets: IntArray  # (Tq, Tk)


def relative_bias(
    scores: Array, table: Array, *, q_offset: int = 0, bidirectional: bool = True, max_distance: int = 128
) -> Array:
    """`scores` (B, H, Tq, Tk) plus the numbers of `table` (buckets, H) at their distances.

    q_offset: position of query 0. bidirectional: half of the buckets are for keys after the query; else all are for
    keys before it, and later keys are at distance 0. max_distance: from there on all are in the last bucket.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return relative_bias_steps(
        scores, table, q_offset=q_offset, bidirectional=bidirectional, max_distance=max_distance
    ).output


def relative_bias_steps(
    scores: Array, table: Array, *, q_offset: int = 0, bidirectional: bool = True, max_distance: int = 128
) -> RelativeBiasSteps:
    """`relative_bias` with its buckets; same arguments and errors."""
    return RelativeBiasSteps(*_rust.relative_bias(scores, table, q_offset, bidirectional, max_distance))
