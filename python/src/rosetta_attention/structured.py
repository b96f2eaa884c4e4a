"""Structured self-attention: a sentence of any length becomes a fixed number of weighted means of its rows.

    A = softmax(W_2 tanh(W_1 Hᵀ)),   M = A H,   penalty = ||A Aᵀ - I||²

Each of the R rows of A is one way to read the sentence; the penalty, added to a loss, keeps them apart.

Letters: B batch, T positions, C width, A of the hidden layer, R rows of the result.

Source: Lin et al., "A structured self-attentive sentence embedding", 2017.
"""

from typing import NamedTuple

import numpy as np

from .arrays import Array, IntArray
from .cast import op
from .checks import check_structured
from .heads import linear, weighted_sum
from .masks import Mask, visible
from .softmax import softmax


class StructuredSteps(NamedTuple):
    """The output of one call, its weights, and the penalty."""

    output: Array  # (B, R, C)
    weights: Array  # (B, R, T)
    penalty: Array  # (B,)


def structured(h: Array, w_1: Array, w_2: Array, *, kv_lengths: IntArray | None = None) -> Array:
    """R weighted means of the rows of `h` (B, T, C): (B, R, C). w_1: (A, C). w_2: (R, A).

    kv_lengths: int64 (B,), how many positions of each row exist.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return structured_steps(h, w_1, w_2, kv_lengths=kv_lengths).output


@op
def structured_steps(
    h: Array, w_1: Array, w_2: Array, *, kv_lengths: IntArray | None = None
) -> StructuredSteps:
    """`structured` with its weights and penalty; same arguments and errors."""
    check_structured("structured", h, w_1, w_2, kv_lengths=kv_lengths)
    B, T, _ = h.shape
    R = w_2.shape[0]

    # 1. hidden: a small layer on each position
    hidden = np.tanh(linear(h, w_1))  # (B, T, A)

    # 2. scores: R numbers a position, hidden beyond the length of the row
    scores = linear(hidden, w_2).swapaxes(1, 2)  # (B, R, T)
    shown = visible(Mask(kv_lengths=kv_lengths), B, 1, R, T)[:, 0]  # (B, R, T)
    scores = np.where(shown, scores, -np.inf)

    # 3. softmax: over the positions
    weights = softmax(scores)  # (B, R, T)

    # 4. weighted sum: of the rows of h, as with one head
    seen = scores != -np.inf  # (B, R, T)
    output = weighted_sum(weights[:, None], h[:, None], seen[:, None])[:, 0]  # (B, R, C)

    # 5. penalty: 0 where each row of the weights stands on one position, and no two on the same
    off = weights @ weights.swapaxes(1, 2) - np.eye(R, dtype=h.dtype)  # (B, R, R)
    return StructuredSteps(output, weights, np.sum(off * off, axis=(1, 2)))
