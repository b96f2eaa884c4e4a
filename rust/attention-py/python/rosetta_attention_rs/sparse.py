"""Sparse attention: softmax attention in which only the visible pairs of a pattern are ever scored."""

from typing import NamedTuple

from . import _rust
from .arrays import Array, BoolArray, IntArray
from .sparse_patterns import Pattern


class SparseSteps(NamedTuple):
    """What one call gives."""

    output: Array  # (B, Hq, Tq, Dv)
    lse: Array  # (B, Hq, Tq)
    visited: IntArray  # (Tq,), for how many keys a score was computed, per query and head


def sparse_mask(pattern: Pattern, q_len: int, kv_len: int, *, causal: bool = False) -> BoolArray:
    """The pattern as a table (Tq, Tk), True = attend. causal: and j <= i. Raises ShapeMismatch, InvalidConfig."""
    return _rust.sparse_mask(pattern, q_len, kv_len, causal)


def sparse(
    q: Array, k: Array, v: Array, pattern: Pattern, *, scale: float | None = None, causal: bool = False
) -> Array:
    """Attention of `q` (B, Hq, Tq, D) over the keys `k` (B, Hkv, Tk, D) and values `v` (B, Hkv, Tk, Dv) that
    `pattern` shows it: (B, Hq, Tq, Dv).

    scale: None = 1/sqrt(D); an explicit 0 is 0. causal: and j <= i. A query without a visible key has output 0.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return sparse_steps(q, k, v, pattern, scale=scale, causal=causal).output


def sparse_steps(
    q: Array, k: Array, v: Array, pattern: Pattern, *, scale: float | None = None, causal: bool = False
) -> SparseSteps:
    """`sparse` with its log-sum-exp and its count of scores; same arguments and errors."""
    return SparseSteps(*_rust.sparse(q, k, v, pattern, scale, causal))
