"""Softmax of scores that are themselves uncertain.

With scores in [z - e, z + e], the weight of slot j is largest when its own score is at the top and all others at the
bottom, and smallest the other way round. Both ends are a logistic function of z_j and the log-sum-exp of the *other*
slots, so the interval is exact however large e is, and never wider than [0, 1].
"""

from typing import NamedTuple

import numpy as np

from .arithmetic import Arithmetic, Bounded

KEY_TILE = 16  # no port's online softmax takes fewer keys at a time unless it is told to


class SoftmaxBound(NamedTuple):
    """The weights and the log-sum-exp, each with its error."""

    weights: Bounded  # (..., n)
    lse: Bounded  # (...)


def bound_softmax(
    arithmetic: Arithmetic,
    scores: Bounded,
    shown: np.ndarray,
    sink: np.ndarray | None,
    rescales: int | None = None,
) -> SoftmaxBound:
    """scores (..., n), shown (..., n) bool; sink (...) is exact and joins the sum.

    rescales: how often an online softmax may multiply what it has by a new exponential; once per 16 slots if not given.
    """
    u, n = arithmetic.u, scores.value.shape[-1]
    z = np.where(shown, scores.value, -np.inf)
    extra = np.full(z.shape[:-1], -np.inf) if sink is None else np.broadcast_to(sink, z.shape[:-1])
    top = np.maximum(np.max(z, axis=-1, initial=-np.inf), extra)[..., None]
    # The subtraction of the maximum rounds; so do the two factors of a kernel that works in base 2.
    e = np.where(shown, scores.error + u * (np.abs(z - top) + 2 * np.abs(z)), 0)

    value = _weight(z, z, extra)
    high = _weight(z + e, z - e, extra)
    low = _weight(z - e, z + e, extra)
    # exp of numerator and denominator, the sum, the division, and an online softmax's rescaling.
    rescales = -(-n // KEY_TILE) if rescales is None else rescales
    rounding = (
        2 * arithmetic.elementary + arithmetic.gamma(n + 2) + rescales * (arithmetic.elementary + 2 * u)
    )
    weight_error = np.where(
        shown, np.maximum(high - value, value - low) + rounding * high + arithmetic.tiny, 0
    )

    lse = np.logaddexp(_lse(z), extra)
    lse_high, lse_low = np.logaddexp(_lse(z + e), extra), np.logaddexp(_lse(z - e), extra)
    spread = np.maximum(lse_high - lse, lse - lse_low)
    log_total = np.abs(lse - top[..., 0])
    lse_error = (
        spread + rounding + arithmetic.elementary * log_total + 2 * u * (np.abs(lse) + np.abs(top[..., 0]))
    )
    nothing = (lse == -np.inf) | ~shown.any(axis=-1)  # no sum: -inf, or the sink itself
    return SoftmaxBound(
        Bounded(value, weight_error), Bounded(lse, np.where(nothing, 0, lse_error + arithmetic.tiny))
    )


def _weight(own: np.ndarray, others: np.ndarray, extra: np.ndarray) -> np.ndarray:
    """exp(own_j) / (exp(own_j) + sum over l != j of exp(others_l) + exp(extra))."""
    rest = np.logaddexp(_lse_of_others(others), extra[..., None])
    with np.errstate(over="ignore"):  # 1 / (1 + inf) is the 0 that is meant
        return np.where(own == -np.inf, 0, 1 / (1 + np.exp(rest - own)))


def _lse(z: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp.reduce(z, axis=-1, initial=-np.inf))


def _lse_of_others(z: np.ndarray) -> np.ndarray:
    """For each slot the log-sum-exp of all other slots: of those before it and those after it."""
    edge = np.full((*z.shape[:-1], 1), -np.inf)
    if z.shape[-1] == 0:
        return z
    before = np.logaddexp.accumulate(np.concatenate([edge, z[..., :-1]], axis=-1), axis=-1)
    after = np.logaddexp.accumulate(np.concatenate([edge, z[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    return np.logaddexp(before, after)
