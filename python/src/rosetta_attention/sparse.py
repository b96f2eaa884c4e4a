"""Sparse attention: every query looks at the keys of its pattern, and at no other.

    output_i = softmax over j in keys(i) of (scale · q_i · k_j) · v_j

What changes from sdpa with a mask: hidden pairs are not scored and thrown away, they are never touched, so
the work grows with the visible pairs.

Letters: B batch, Hq query heads, Hkv key/value heads, Tq and Tk query and key lengths, D head size, Dv head
size of the values, n keys of one query.

Sources: those of sparse_patterns.
"""

import math
from typing import NamedTuple

import numpy as np

from .arrays import Array, BoolArray, IntArray
from .cast import op
from .checks import check_pattern, check_sparse
from .heads import products, weighted_sum
from .softmax import softmax_lse
from .sparse_patterns import Pattern


class SparseSteps(NamedTuple):
    """The output of one call, its log-sum-exp, and how many keys each query was scored with."""

    output: Array  # (B, Hq, Tq, Dv)
    lse: Array  # (B, Hq, Tq)
    visited: IntArray  # (Tq,), per head


def sparse_mask(pattern: Pattern, q_len: int, kv_len: int, *, causal: bool = False) -> BoolArray:
    """The pattern as a table (Tq, Tk), True = attend. causal: adds j <= i. Raises ShapeMismatch, InvalidConfig."""
    check_pattern("sparse_mask", pattern, q_len, kv_len, causal)
    i, j = np.arange(q_len)[:, None], np.arange(kv_len)  # (Tq, 1), (Tk,)
    table = np.array(np.broadcast_to(pattern.shows(i, j, q_len, kv_len), (q_len, kv_len)))  # (Tq, Tk)
    return table & (j <= i) if causal else table


def sparse(
    q: Array, k: Array, v: Array, pattern: Pattern, *, scale: float | None = None, causal: bool = False
) -> Array:
    """Attention of `q` (B, Hq, Tq, D) over what `pattern` shows of `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv).

    scale: None = 1/sqrt(D). causal: adds j <= i to the pattern. A query without keys gives 0.
    Returns (B, Hq, Tq, Dv). Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return sparse_steps(q, k, v, pattern, scale=scale, causal=causal).output


@op
def sparse_steps(
    q: Array, k: Array, v: Array, pattern: Pattern, *, scale: float | None = None, causal: bool = False
) -> SparseSteps:
    """`sparse` with its log-sum-exp and counts; same arguments and errors."""
    check_sparse("sparse", q, k, v, pattern, scale=scale, causal=causal)
    B, Hq, Tq, D = q.shape
    Tk = k.shape[2]
    q = q * (1 / math.sqrt(D) if scale is None else float(scale))  # (B, Hq, Tq, D)
    output = np.empty((B, Hq, Tq, v.shape[3]), q.dtype)  # (B, Hq, Tq, Dv)
    lse = np.empty((B, Hq, Tq), q.dtype)  # (B, Hq, Tq)
    visited = np.zeros(Tq, np.int64)  # (Tq,)
    for i in range(Tq):
        # 1. keys: listed by the pattern, not searched for
        j = pattern.keys(i, Tq, Tk)  # (n,)
        j = j[j <= i] if causal else j
        visited[i] = j.size

        # 2. scores: of these alone
        scores = products(q[:, :, i : i + 1], k[:, :, j])  # (B, Hq, 1, n)

        # 3. softmax: over these
        weights, lse[:, :, i : i + 1] = softmax_lse(scores)  # (B, Hq, 1, n)

        # 4. weighted sum: of their values
        output[:, :, i : i + 1] = weighted_sum(weights, v[:, :, j], scores != -np.inf)  # (B, Hq, 1, Dv)
    return SparseSteps(output, lse, visited)
