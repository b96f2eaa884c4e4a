"""Whether what a policy keeps hangs on a rounding: then two correct ports may keep different slots.

A slot that stays must have a score that is larger than that of each one that goes, whatever the roundings of both; or
as large as it at least, where it stands before it. Two scores that may be any in their intervals are equal for certain
only where they are the same sum of the same weights: of rows in which both slots are hidden, or both have the row's
largest logit from one product, so that their weight is exp(0) over one and the same total.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..oracle.cache_attend import Attend
from ..oracle.cache_state import Sizes
from ..oracle.eviction import HEAVY_HITTERS, KEY_NORM, SNAPKV, Chosen, read_key
from ..oracle.kv_cache import events
from ..tensors import HALVES, NUMPY_DTYPES, Tensors, compute_dtype
from .arithmetic import Arithmetic
from .half import round_to_half
from .kv_cache import F64, Held

Interval = tuple[tuple[bool, float], tuple[bool, float]]  # NaN is (False, 0), below every (True, x)
Sign = tuple[tuple[int, int, int, int], ...]
HIDDEN, TOP, OTHER = 0, 1, 2


def find_undecided(
    config: dict[str, Any], inputs: Tensors, steps: Sequence[str] | None, dtype: str
) -> list[int]:
    """The numbers of the ok steps whose policy could keep other slots in a correct port. inputs: of that dtype."""
    if not any(isinstance(step, dict) and step.get("policy") for step in config["steps"]):
        return []
    sizes = Sizes.of(config)
    with np.errstate(all="ignore"):
        judge = _Judge(Arithmetic.of(compute_dtype(dtype)), sizes, dtype)
        return [
            number
            for number, event in events(config, inputs, steps)
            if isinstance(event, Chosen) and not judge.decided(event)
        ]


class _Judge:
    def __init__(self, arithmetic: Arithmetic, sizes: Sizes, dtype: str) -> None:
        self._held, self._sizes, self._dtype = Held(arithmetic, sizes, dtype), sizes, dtype
        self._kinds: dict[Attend, np.ndarray] = {}

    def decided(self, chosen: Chosen) -> bool:
        """Whether every correct port keeps the same."""
        return all(self._row_decided(chosen, b) for b in range(len(chosen.rows)))

    def _row_decided(self, chosen: Chosen, b: int) -> bool:
        policy, row = chosen.policy, chosen.rows[b]
        ranked = policy.ranked(b, len(row))
        span = {s: self._interval(chosen, b, s) for s in ranked}
        signs = {s: self._sign(chosen, b, s) for s in ranked}

        def as_large(m: int, n: int) -> bool:
            same = m == n or (signs[m] is not None and signs[m] == signs[n])
            return same or span[m][0] >= span[n][1]

        def above(i: int, j: int) -> bool:
            """The largest of i's neighbours is larger than that of j's; or as large, and i comes first."""
            ours, theirs = policy.neighbours(i, ranked), policy.neighbours(j, ranked)
            if any(all(span[m][0] > span[n][1] for n in theirs) for m in ours):
                return True
            return i < j and all(any(as_large(m, n) for m in ours) for n in theirs)

        stays = [s for s in chosen.kept[b] if s in ranked]
        goes = [s for s in ranked if s not in chosen.kept[b]]
        return all(above(i, j) for i in stays for j in goes)

    def _interval(self, chosen: Chosen, b: int, s: int) -> Interval:
        """The least and the largest score that a correct port may find."""
        score = chosen.scores[b][s]
        if math.isnan(score):
            return (False, 0.0), (False, 0.0)
        if chosen.policy.type == KEY_NORM:
            low, high = self._bound_norm(chosen, b, s)
        elif chosen.policy.type in (HEAVY_HITTERS, SNAPKV):
            reads = self._reads(chosen, b, s)
            total = self._held.tracked(reads)
            heads = total.value.size
            error = total.error.sum() + F64.gamma(heads) * (total.value + total.error).sum()
            low, high = score - float(error), score + float(error)
        else:
            low = high = score
        return (True, low), (True, high)

    def _bound_norm(self, chosen: Chosen, b: int, s: int) -> tuple[float, float]:
        score, slot = chosen.scores[b][s], chosen.rows[b][s]
        error = self._held.keys.error(slot.parts["k"])
        if not error.any() or math.isinf(score):  # the same bits everywhere
            return score, score
        value = read_key(self._sizes, NUMPY_DTYPES[self._dtype], slot)
        if self._sizes.form is not None and self._dtype in HALVES:  # what `read` rounds it to
            error = round_to_half(error, value, self._dtype)
        size, rounding = np.abs(value), F64.gamma(value.size + len(value) + 1)
        low = float(-((size + error) ** 2).sum() * (1 + rounding))
        return low, float(-(np.maximum(size - error, 0) ** 2).sum() * (1 - rounding))

    def _reads(self, chosen: Chosen, b: int, s: int) -> tuple[tuple[Attend, int, int], ...]:
        if chosen.attend is not None:
            return ((chosen.attend, b, s),)
        return chosen.rows[b][s].reads

    def _sign(self, chosen: Chosen, b: int, s: int) -> Sign | None:
        """The rows of weights whose largest ones make up the score; None where some are in between."""
        if chosen.policy.type not in (HEAVY_HITTERS, SNAPKV):
            return None
        found = []
        for event, row, slot in self._reads(chosen, b, s):
            kinds = self._kinds_of(event)[row, ..., slot]  # (Hq, Tq)
            if (kinds == OTHER).any():
                return None
            found += [(id(event), row, int(h), int(i)) for h, i in np.argwhere(kinds == TOP)]
        return tuple(found)

    def _kinds_of(self, event: Attend) -> np.ndarray:
        if event not in self._kinds:
            self._kinds[event] = self._classify(event)
        return self._kinds[event]

    def _classify(self, event: Attend) -> np.ndarray:
        """(B, Hq, Tq, L): HIDDEN; TOP, the row's largest logit, for certain; or OTHER."""
        q, k = event.inputs["q"], event.inputs["k"]
        logits, bounds = event.answer["biased"], self._held.attend(event)["biased"]
        shown = event.inputs["mask"] & (logits != -np.inf)
        kinds = np.where(shown, OTHER, HIDDEN)
        bias = np.broadcast_to(event.inputs.get("bias", np.zeros(())), shown.shape)
        group = q.shape[1] // k.shape[1]
        for b, h, i in np.ndindex(*shown.shape[:3]):
            seen = np.flatnonzero(shown[b, h, i])
            if not seen.size or not np.isfinite(logits[b, h, i, seen]).all():
                continue
            products = q[b, h, i] * k[b, h // group, seen]  # (seen, D)
            # One product and zeros: a sum in any order is that product. What is rotated is never known that well.
            plain = (products != 0).sum(axis=-1) <= (1 if self._sizes.rope is None else 0)
            top = seen[np.argmax(np.where(plain, logits[b, h, i, seen], -np.inf))]
            own = products[list(seen).index(top)].sum(), bias[b, h, i, top]
            same = plain & (products.sum(axis=-1) == own[0]) & (bias[b, h, i, seen] == own[1])
            high = bounds.value[b, h, i] + bounds.error[b, h, i]
            least = bounds.value[b, h, i, top] - bounds.error[b, h, i, top]
            if plain.any() and (same | (high[seen] < least)).all():
                kinds[b, h, i, seen[same]] = TOP
        return kinds
