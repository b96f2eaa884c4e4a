"""How well a query fits a key: the four classic forms, each before the same softmax."""

from typing import NamedTuple

from . import _rust
from .arrays import Array, IntArray


class ScoringSteps(NamedTuple):
    """The output of one call, the weights, and the scores before the mask."""

    output: Array  # (B, Tq, Dv)
    weights: Array  # (B, Tq, Tk)
    scores: Array  # (B, Tq, Tk)


def scoring(
    form: str,
    q: Array,
    k: Array,
    v: Array,
    *,
    w_q: Array | None = None,
    w_k: Array | None = None,
    w_v: Array | None = None,
    w: Array | None = None,
    kv_lengths: IntArray | None = None,
) -> Array:
    """Attention of `q` (B, Tq, Dq) over `k` (B, Tk, Dk) and `v` (B, Tk, Dv): (B, Tq, Dv).

    form: "additive", "dot", "general" or "scaled". w_q (A, Dq), w_k (A, Dk), w_v (A,): for additive alone.
    w (Dq, Dk): for general alone. kv_lengths: int64 (B,), how many keys of each row exist.

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return scoring_steps(form, q, k, v, w_q=w_q, w_k=w_k, w_v=w_v, w=w, kv_lengths=kv_lengths).output


def scoring_steps(
    form: str,
    q: Array,
    k: Array,
    v: Array,
    *,
    w_q: Array | None = None,
    w_k: Array | None = None,
    w_v: Array | None = None,
    w: Array | None = None,
    kv_lengths: IntArray | None = None,
) -> ScoringSteps:
    """`scoring` with its weights and scores; same arguments and errors."""
    return ScoringSteps(*_rust.scoring(form, q, k, v, (w_q, w_k, w_v, w), kv_lengths))
