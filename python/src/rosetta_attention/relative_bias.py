"""T5's relative position bias: a learned number for each head and each bucket of distances.

    output = scores + table[bucket(j - p), h],   p = i + q_offset

Near distances have a bucket each, far ones share buckets whose width grows like the logarithm, and everything
from max_distance on is in the last one.

Letters: B batch, H heads, Tq and Tk query and key lengths.

Source: Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text transformer",
2020, section 2.1.
"""

import math
from typing import NamedTuple

import numpy as np

from .arrays import Array, IntArray
from .cast import op
from .checks import check_relative_bias


class RelativeBiasSteps(NamedTuple):
    """The output of one call, and the bucket of every query and key."""

    output: Array  # (B, H, Tq, Tk)
    buckets: IntArray  # (Tq, Tk)


def relative_bias(
    scores: Array, table: Array, *, q_offset: int = 0, bidirectional: bool = True, max_distance: int = 128
) -> Array:
    """`scores` (B, H, Tq, Tk) plus the numbers of `table` (buckets, H) at their distances.

    q_offset: position of query 0. bidirectional: half of the buckets are for keys after the query; else all
    are for keys before it, and later keys are at distance 0.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return relative_bias_steps(
        scores, table, q_offset=q_offset, bidirectional=bidirectional, max_distance=max_distance
    ).output


@op
def relative_bias_steps(
    scores: Array, table: Array, *, q_offset: int = 0, bidirectional: bool = True, max_distance: int = 128
) -> RelativeBiasSteps:
    """`relative_bias` with its buckets; same arguments and errors."""
    check_relative_bias(
        "relative_bias",
        scores,
        table,
        q_offset=q_offset,
        bidirectional=bidirectional,
        max_distance=max_distance,
    )
    _, _, Tq, Tk = scores.shape

    # 1. distances: from the query to the key, positive to the right
    r = np.arange(Tk) - (q_offset + np.arange(Tq)[:, None])  # (Tq, Tk)

    # 2. buckets: one a distance up to `exact`, then ever wider ones
    n = table.shape[0] // 2 if bidirectional else table.shape[0]
    d = np.abs(r) if bidirectional else np.maximum(-r, 0)  # (Tq, Tk)
    exact = n // 2
    growth = np.log(np.maximum(d, exact) / exact) / math.log(max_distance / exact)  # (Tq, Tk)
    far = exact + np.floor(growth * (n - exact) + 1e-9).astype(np.int64)  # a whole quotient comes out whole
    buckets = np.where(d < exact, d, np.minimum(far, n - 1))  # (Tq, Tk)
    if bidirectional:
        buckets += np.where(r > 0, n, 0)

    # 3. add: each head its own numbers
    bias = np.moveaxis(table[buckets], -1, 0)  # (H, Tq, Tk)
    return RelativeBiasSteps(scores + bias, buckets)
