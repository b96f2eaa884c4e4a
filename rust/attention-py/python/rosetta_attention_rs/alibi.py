"""Attention with linear biases: each head loses score with the distance, at a rate of its own."""

from typing import NamedTuple

from . import _rust
from .arrays import Array, Float64Array


class AlibiSteps(NamedTuple):
    """The output of one call, the slopes of the heads, and the bias."""

    output: Array  # (B, H, Tq, Tk)
    slopes: Array  # (H,)
    bias: Array  # (H, Tq, Tk)


def alibi(scores: Array, *, q_offset: int = 0) -> Array:
    """`scores` (B, H, Tq, Tk) plus the bias of their distances; q_offset: position of query 0.

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return alibi_steps(scores, q_offset=q_offset).output


def alibi_steps(scores: Array, *, q_offset: int = 0) -> AlibiSteps:
    """`alibi` with its slopes and bias; same arguments and errors."""
    return AlibiSteps(*_rust.alibi(scores, q_offset))


def alibi_slopes(num_heads: int) -> Float64Array:
    """2^(-8(h+1)/H) where H is a power of two; else those of the power of two below, and, to fill up, every
    other one of the power of two above: (H,)."""
    return _rust.alibi_slopes(num_heads)
