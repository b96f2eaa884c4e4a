"""ALiBi: attention with linear biases. A key costs more the further it stands from the query.

    output = scores + bias,   bias[h, i, j] = -slope_h · |p - j|,   p = i + q_offset

Each head has a slope of its own, from a geometric series; nothing is learned, and longer texts than in
training need no change.

Letters: B batch, H heads, Tq and Tk query and key lengths.

Source: Press, Smith and Lewis, "Train short, test long", 2022, section 3, with their rule for head counts
that are no power of two.
"""

from typing import NamedTuple

import numpy as np

from .arrays import Array, Float64Array
from .cast import op
from .checks import check_alibi


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


@op
def alibi_steps(scores: Array, *, q_offset: int = 0) -> AlibiSteps:
    """`alibi` with its slopes and bias; same arguments and errors."""
    check_alibi("alibi", scores, q_offset=q_offset)
    _, H, Tq, Tk = scores.shape

    # 1. slopes: one a head, in float64
    slopes = alibi_slopes(H)  # (H,)

    # 2. distances: of every query and key, in positions
    distances = np.abs(q_offset + np.arange(Tq)[:, None] - np.arange(Tk))  # (Tq, Tk)

    # 3. add: the bias, rounded once
    bias = (slopes[:, None, None] * -distances).astype(scores.dtype)  # (H, Tq, Tk)
    return AlibiSteps(scores + bias, slopes.astype(scores.dtype), bias)


def alibi_slopes(num_heads: int) -> Float64Array:
    """2^(-8(h+1)/H) where H is a power of two; else those of the power of two below, and, to fill up, every
    other one of the power of two above: (H,)."""
    m = 1 << num_heads.bit_length() - 1 if num_heads else 0  # the largest power of two that is not above H
    return np.concatenate([_series(m), _series(2 * m)[::2][: num_heads - m]])


def _series(n: int) -> Float64Array:
    """2^(-8/n), 2^(-16/n), ... 2^-8."""
    series: Float64Array = np.exp2(-8 * np.arange(1, n + 1) / max(n, 1))
    return series
