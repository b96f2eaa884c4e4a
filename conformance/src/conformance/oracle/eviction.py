"""Which slots of a row a policy keeps: a score for each slot, and the highest ones stay.

Sources: Xiao et al., "Efficient streaming language models with attention sinks", 2023 (window); Zhang et al., "H2O",
2023 (heavy_hitters); Li et al., "SnapKV", 2024; Devoto et al., "A simple and effective L2 norm-based strategy for KV
cache compression", 2024 (key_norm).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tensors import Tensors
from .cache_attend import Attend, read_attend
from .cache_checks import CONFIG, REQUEST, SHAPE, check_attend, need, whole
from .cache_state import PER_HEAD, Cache, Sizes, Slot
from .per_head import as_rows

WINDOW, HEAVY_HITTERS, SNAPKV, KEY_NORM = "window", "heavy_hitters", "snapkv", "key_norm"
POLICIES = (WINDOW, HEAVY_HITTERS, SNAPKV, KEY_NORM)


@dataclass(frozen=True)
class Policy:
    """budgets: one for each row of the machine."""

    type: str
    budgets: list[int]
    sinks: int
    recent: int
    pool: int

    def ranked(self, b: int, slots: int) -> range:
        """The slots between sinks and recent, when row b holds more than its budget; none where nothing is ranked."""
        if slots <= self.budgets[b] or self.budgets[b] == 0:
            return range(0)
        return range(self.sinks, slots - self.recent)

    def neighbours(self, slot: int, ranked: range) -> range:
        """Those whose largest score becomes that of the slot."""
        reach = self.pool // 2
        return range(max(ranked.start, slot - reach), min(ranked.stop, slot + reach + 1))


@dataclass(frozen=True, eq=False)
class Chosen:
    """A step that evicts by a policy. rows: the slots held before. scores, kept: of each row, by slot.

    attend: of the queries of snapkv.
    """

    policy: Policy
    rows: list[list[Slot]]
    scores: list[list[float]]
    kept: list[list[int]]
    attend: Attend | None


def choose(sizes: Sizes, cache: Cache, step: dict[str, Any], inputs: Tensors) -> Chosen:
    """What the policy of the step keeps of every row."""
    fields = step["policy"]
    policy = read_policy(sizes, fields)
    need(policy.type != HEAVY_HITTERS or sizes.track, CONFIG)
    attend = _observe(sizes, cache, fields, inputs) if policy.type == SNAPKV else None
    scores = [
        [score(sizes, policy, cache, attend, b, s) for s in range(len(row))]
        for b, row in enumerate(cache.rows)
    ]
    kept = [keep(policy, b, row) for b, row in enumerate(scores)]
    return Chosen(policy, [list(row) for row in cache.rows], scores, kept, attend)


def read_policy(sizes: Sizes, fields: Any) -> Policy:
    """The fields of a policy, checked."""
    need(isinstance(fields, dict), CONFIG)
    need(fields.get("type") is not None and fields.get("budget") is not None, REQUEST)
    need(fields["type"] in POLICIES, CONFIG)
    sinks, recent = (_count(fields.get(name), absent=0) for name in ("sinks", "recent"))
    need(fields["type"] != WINDOW or fields.get("recent") is None, CONFIG)
    budget = fields["budget"]
    if isinstance(budget, list):
        need(sizes.kind == PER_HEAD, CONFIG)
        need(len(budget) == sizes.split, SHAPE)
    heads = [_count(n) for n in (budget if isinstance(budget, list) else [budget] * sizes.split)]
    need(all(n == 0 or sinks + recent <= n for n in heads), CONFIG)
    pool = 1
    if fields["type"] == SNAPKV and fields.get("pool") is not None:
        pool = whole(fields["pool"])
        need(pool >= 1 and pool % 2 == 1, CONFIG)
    return Policy(fields["type"], heads * (sizes.batch // sizes.split), sinks, recent, pool)


def score(sizes: Sizes, policy: Policy, cache: Cache, attend: Attend | None, b: int, s: int) -> float:
    """Of slot s of row b, before any pool, added up over the heads of the row."""
    slot = cache.rows[b][s]
    if policy.type == WINDOW:
        return float(slot.position)
    if policy.type == HEAVY_HITTERS:
        return float(slot.tracked().sum())
    if attend is not None:
        return float(attend.given[b, :, s].sum())
    return -squares(read_key(sizes, cache.dtype, slot))


def keep(policy: Policy, b: int, scores: list[float]) -> list[int]:
    """The slots that stay of row b."""
    slots, budget = len(scores), policy.budgets[b]
    ranked = policy.ranked(b, slots)
    if len(ranked) == 0:
        return list(range(slots)) if budget else []
    pooled = {s: max(_order(scores[j]) for j in policy.neighbours(s, ranked)) for s in ranked}
    best = sorted(ranked, key=lambda s: (pooled[s], -s), reverse=True)
    stays = {*range(policy.sinks), *range(slots - policy.recent, slots)}
    return sorted(stays.union(best[: budget - policy.sinks - policy.recent]))


def squares(key: np.ndarray) -> float:
    """The sum of the squares of (H, D), channel after channel and head after head, in float64."""
    total = 0.0
    for head in key.tolist():
        own = 0.0
        for x in head:
            own += x * x
        total += own
    return total


def read_key(sizes: Sizes, dtype: np.dtype[Any] | None, slot: Slot) -> np.ndarray:
    """The key as `read` gives it, in float64: of a rotated one, before its rounding to a half type."""
    value = slot.parts["k"].value
    if sizes.form is None or sizes.rotates or dtype is None:
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        return value.astype(dtype).astype(np.float64)


def _order(x: float) -> tuple[bool, float]:
    """NaN is below every number."""
    return (False, 0.0) if math.isnan(x) else (True, x)


def _count(x: Any, absent: int | None = None) -> int:
    n = absent if x is None and absent is not None else whole(x)
    need(n >= 0, CONFIG)
    return n


def _observe(sizes: Sizes, cache: Cache, fields: dict[str, Any], inputs: Tensors) -> Attend:
    """The queries of snapkv, as an attend that nothing is written of."""
    scale = fields.get("scale")
    step = {"do": "attend", "q": fields.get("q"), "causal": True, "scale": scale}
    rows = as_rows(sizes, cache, step, inputs)
    q = check_attend(sizes, cache, step, rows)
    need(q.shape[2] >= 1, SHAPE)
    if scale is not None:
        need(isinstance(scale, int | float) and not isinstance(scale, bool) and math.isfinite(scale), CONFIG)
    return read_attend(sizes, cache, step, rows, q)
