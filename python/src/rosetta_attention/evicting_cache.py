"""Caches whose slots can be forgotten one by one, and whose positions can move to close the gap.

With `track` every slot has the weights that it was given beside it, added up since it was appended: a part of the slot
that goes wherever the slot goes.

Letters: B batch, Hkv key/value heads, Hq query heads, G = Hq / Hkv, Tq queries, W those of a policy, L longest row, D
head size.

Sources: Xiao et al., "Efficient streaming language models with attention sinks", 2023, section 3.2; Zhang et al.,
"H2O", 2023, section 4 (weights added up).
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Array, BoolArray, Float64Array, IntArray
from .cache import KeyValueCache
from .cast import widen
from .checks import Call, check_evict, check_policy, check_shift, check_tracked
from .eviction import HeavyHitters, Policy, SnapKV, slot_scores, slots_that_stay
from .heads import group_heads
from .masks import Mask
from .slot_cache import SlotCache
from .slots import TRACKED


class EvictingCache(SlotCache, KeyValueCache):
    """Evict leaves gaps between positions, shift closes them. track: whether weights are added up."""

    track: bool = False

    def _beside(self) -> dict[str, tuple[int, int, np.dtype[Any]]]:
        """The parts of a slot beside what was appended."""
        return {TRACKED: (self.num_kv_heads, 1, np.dtype(np.float64))} if self.track else {}

    def evict(self, positions: Sequence[int]) -> None:
        """Every row forgets these positions, where it holds them; the others keep theirs.

        The next token stands where it would have stood. Raises InvalidConfig.
        """
        check_evict("evict", positions)
        gone = {int(j) for j in positions}  # of any size, unlike int64
        held = self._slots.positions[:, : len(self)]  # (B, L)
        kept = [[j not in gone for j in row] for row in held.tolist()]
        self._keep(np.array(kept, np.bool_).reshape(held.shape))

    def evict_by(self, policy: Policy) -> None:
        """Every row keeps the slots that the policy chooses, and forgets the others as `evict` does.

        A row that holds no more than the budget keeps all. The choice is one for all heads.
        Raises InvalidConfig, also for HeavyHitters in a cache that does not track; ShapeMismatch and DtypeMismatch for
        the queries of SnapKV.
        """
        check_eviction("evict_by", policy, self, self.track)
        self.keep_chosen(policy, [policy.budget] * self.batch)

    def keep_chosen(self, policy: Policy, budgets: Sequence[Any]) -> None:
        """`evict_by` of what is checked already, with a budget for each row."""
        scores = slot_scores(policy, self)  # (B, L)
        recent, pool = policy.recent, policy.pool
        kept = np.zeros(scores.shape, np.bool_)  # (B, L)
        for b, n in enumerate(self._slots.lengths):
            kept[b, :n] = slots_that_stay(scores[b, :n], budgets[b], policy.sinks, recent, pool)
        self._keep(kept)

    def _keep(self, kept: BoolArray) -> None:
        """Forgets the slots where `kept` (B, L) is False."""
        self._slots.keep(kept)

    def tracked(self) -> Float64Array:
        """A copy of the weights that each slot was given since it was appended, by all queries of all query heads that
        read its KV head: (B, Hkv, L), zero beyond a row's length. Raises InvalidConfig without `track`.
        """
        check_tracked("tracked", self.track)
        tracked: Float64Array = self._slots.read(TRACKED)[..., 0]
        return tracked

    def given(self, q: Array, scale: float | None = None) -> Float64Array:
        """The weights that causal queries (B, Hq, W, D) would give each slot: (B, Hkv, L). Nothing is tracked."""
        steps = self._attend(widen(q), mask=Mask(causal=True), scale=scale)
        return self._per_kv_head(steps.weights)

    def _track(self, weights: Array) -> None:
        if self.track:
            self._slots.held(TRACKED)[..., 0] += self._per_kv_head(weights)  # (B, Hkv, L)

    def describe(self) -> dict[str, str]:
        """What a file says of the cache beside kind, dtype and batch."""
        return super().describe() | ({"track": "true"} if self.track else {})

    def _to_file(self) -> dict[str, NDArray[Any]]:
        return super()._to_file() | ({TRACKED: self.tracked()} if self.track else {})

    def _from_file(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        of_slots = {TRACKED: arrays[TRACKED][..., None]} if self.track else {}  # (B, Hkv, L, 1)
        return {**arrays, **of_slots}

    def _per_kv_head(self, weights: Array) -> Float64Array:
        """(B, Hq, Tq, L) added up over queries and the query heads of a group: (B, Hkv, L)."""
        grouped = group_heads(weights, self.num_kv_heads)  # (B, Hkv, G, Tq, L)
        given: Float64Array = np.sum(grouped, axis=(2, 3), dtype=np.float64)
        return given

    def shift(self, by: int, start: int) -> None:
        """Every position from `start` on moves by `by`, and its key turns with it; so does the position of the
        next token, if it is beyond `start`.

        Raises InvalidConfig where a position would fall below 0, or come to or pass one that stays.
        """
        slots = self._slots
        rows = [row[:n] for row, n in zip(slots.positions, slots.lengths, strict=True)]
        check_shift("shift", by, start, rows, slots.next)
        if by == 0:
            return
        moved = [np.flatnonzero(row >= start) for row in rows]
        if self.held_rope is not None:
            self._turn(moved, by)
        for b, which in enumerate(moved):
            slots.positions[b, which] += by
        slots.next = np.where(slots.next > start, slots.next + by, slots.next)

    @abstractmethod
    def _turn(self, moved: Sequence[IntArray], by: int) -> None:
        """Turns the keys of these slots of each row by so many positions more. Where it raises, nothing is changed."""


def check_eviction(
    name: str, policy: Policy, cache: KeyValueCache, track: bool, heads: int | None = None
) -> None:
    """That the cache can go by the policy. heads: how many budgets a list of them has; None = there can be none."""
    call = Call(name)
    call.config(isinstance(policy, Policy), "policy", "one of the module eviction", type(policy).__name__)
    check_policy(name, policy, heads)
    if isinstance(policy, HeavyHitters):
        check_tracked(name, track)
    if isinstance(policy, SnapKV):
        cache.check_attend(name, policy.q, len(cache), scale=policy.scale)
        W = policy.q.shape[2]
        call.shape(W >= 1, "q", "at least one query", W)
