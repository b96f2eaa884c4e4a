"""Which slots of a row stay when it may hold no more than a budget.

    Window          the first ones and the latest
    HeavyHitters    those that were given most weight since they came
    SnapKV          those that some queries, as a rule the last ones of a prompt, give most weight
    KeyNorm         those whose keys are shortest, which models tend to look at most

A policy is a score for every slot. The first `sinks` and the last `recent` slots stay in any case, and of those between
them the ones with the highest scores. Of equal scores the lowest position stays; NaN is below every number.

Letters: B batch, Hkv key/value heads, Hq query heads, W queries, L slots of the longest row, n slots of a row, C of
them between sinks and recent, D head size.

Sources: Xiao et al., "Efficient streaming language models with attention sinks", 2023, section 3.2 (Window); Zhang et
al., "H2O: heavy-hitter oracle for efficient generative inference of large language models", 2023, section 4; Li et al.,
"SnapKV: LLM knows what you are looking for before generation", 2024, section 4; Devoto et al., "A simple and effective
L2 norm based strategy for KV cache compression", 2024, section 3 (KeyNorm).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from .arrays import Array, BoolArray, Float64Array, IntArray


@dataclass(frozen=True)
class Window:
    """sinks, then the last budget - sinks.

    budget: how many slots of a row stay; where every KV head has slots of its own, also one number for each.
    """

    budget: int | Sequence[int]
    sinks: int = 0
    recent: ClassVar[int] = 0
    pool: ClassVar[int] = 1


@dataclass(frozen=True)
class HeavyHitters:
    """The weights that a slot was given since it was appended, in a cache that tracks them."""

    budget: int | Sequence[int]
    sinks: int = 0
    recent: int = 0
    pool: ClassVar[int] = 1


@dataclass(frozen=True, eq=False)
class SnapKV:
    """The weights that these queries give a slot, then the largest among its neighbours.

    q: (B, Hq, W, D), W >= 1; the last one stands on the last position of its row, and no query sees what comes after
        it. scale: as for sdpa. pool: odd, how many slots a neighbourhood has.
    """

    budget: int | Sequence[int]
    q: Array
    sinks: int = 0
    recent: int = 0
    scale: float | None = None
    pool: int = 1


@dataclass(frozen=True)
class KeyNorm:
    """Minus the sum of the squares of a key."""

    budget: int | Sequence[int]
    sinks: int = 0
    recent: int = 0
    pool: ClassVar[int] = 1


Policy = Window | HeavyHitters | SnapKV | KeyNorm


class Evidence(Protocol):
    """What a cache can say of the slots it holds; what it says beyond a row's length means nothing."""

    def slot_positions(self) -> IntArray:
        """(B, L)."""

    def tracked(self) -> Float64Array:
        """(B, Hkv, L), the weights that each slot was given."""

    def given(self, q: Array, scale: float | None) -> Float64Array:
        """(B, Hkv, L), the weights that queries (B, Hq, W, D) give each slot."""

    def read(self) -> tuple[Array, Array, IntArray]:
        """Keys (B, Hkv, L, D), and more."""


@np.errstate(over="ignore", invalid="ignore")  # a key too long for float64, or of NaN, has its rank too
def slot_scores(policy: Policy, cache: Evidence) -> Float64Array:
    """(B, L), the score of every slot. Nothing is checked here."""
    # 1. score: of each head, then added up over the heads
    match policy:
        case Window():
            return cache.slot_positions().astype(np.float64)  # (B, L)
        case HeavyHitters():
            scores = cache.tracked()  # (B, Hkv, L)
        case SnapKV():
            scores = cache.given(policy.q, policy.scale)  # (B, Hkv, L)
        case KeyNorm():
            keys = cache.read()[0]  # (B, Hkv, L, D)
            scores = -_sum_in_order(keys.astype(np.float64) ** 2, axis=3)  # (B, Hkv, L)
    return _sum_in_order(scores, axis=1)  # (B, L)


def slots_that_stay(
    scores: Float64Array, budget: int, sinks: int = 0, recent: int = 0, pool: int = 1
) -> BoolArray:
    """(n,), which slots of a row with these scores (n,) stay. sinks + recent <= budget, unless that is 0.

    Nothing is checked here.
    """
    n = scores.size
    if n <= budget:
        return np.ones(n, np.bool_)
    if budget == 0:
        return np.zeros(n, np.bool_)

    # 2. pool: the largest score of the neighbours that compete; fmax takes NaN for less than any number
    between = scores[sinks : n - recent]  # (C,)
    reach = pool // 2
    pooled = [np.fmax.reduce(between[max(i - reach, 0) : i + reach + 1]) for i in range(between.size)]

    # 3. protect: the first and the last do not compete
    stays = np.zeros(n, np.bool_)  # (n,)
    stays[:sinks] = True
    stays[n - recent :] = True

    # 4. rank: the highest first, equal ones as they stand, NaN at the end
    ranked = np.argsort(-np.array(pooled), kind="stable")  # (C,)

    # 5. keep: as many as the budget leaves
    stays[sinks + ranked[: budget - sinks - recent]] = True
    return stays


def _sum_in_order(x: Float64Array, axis: int) -> Float64Array:
    """The sum over an axis from its first to its last entry. NumPy's own would go in pairs, and round otherwise."""
    along = np.moveaxis(x, axis, 0)
    return sum(along, start=np.zeros(along.shape[1:]))
