"""A cache whose policies keep the `last` of equal slots, put `nan` above every number, rank `sinks` or `recent` slots
with the others, `pool` over them, keep the `largest` keys, add squares in `pairs`, let observers look `ahead`, choose
`together` for all heads or with the budget of the `first`; or whose weights `stay` where they were at an evict or at
a reorder (`rows`), or are those of the `newest` attend; or whose dropped heads give a `mean`."""

import math
import sys
from dataclasses import replace

import numpy as np
from machine_port import serve

from conformance.oracle import cache_attend, eviction, kv_cache
from conformance.oracle.cache_state import PER_HEAD, Slot

honest_keep, honest_policy, honest_score = eviction.keep, eviction.read_policy, eviction.score
honest_attend, honest_sdpa, honest_squares = eviction.read_attend, cache_attend.answer_sdpa, eviction.squares
Machine = kv_cache.Machine
honest_kept, honest_reorder = Machine._kept, Machine.reorder


def keep_last(policy, b, scores):
    return sorted(len(scores) - 1 - s for s in honest_keep(turned(policy), b, scores[::-1]))


def turned(policy):
    return replace(policy, sinks=policy.recent, recent=policy.sinks)


def keep_without(name):
    return lambda policy, b, scores: honest_keep(replace(policy, **{name: 0}), b, scores)


def keep_pooled(policy, b, scores):
    reach = policy.pool // 2
    pooled = [max(scores[max(s - reach, 0) : s + reach + 1], key=eviction._order) for s in range(len(scores))]
    return honest_keep(replace(policy, pool=1), b, pooled)


def score_together(sizes, policy, cache, attend, b, s):
    first = b - b % sizes.split
    rows = range(first, first + sizes.split) if sizes.kind == PER_HEAD else [b]
    return sum(honest_score(sizes, policy, cache, attend, r, s) for r in rows if s < len(cache.rows[r]))


def first_budget(sizes, fields):
    policy = honest_policy(sizes, fields)
    return replace(policy, budgets=policy.budgets[:1] * len(policy.budgets))


def look_ahead(sizes, cache, step, inputs, q):
    return honest_attend(sizes, cache, step | {"causal": False}, inputs, q)


def kept_in_place(self, row, kept):
    slots = honest_kept(self, row, kept)
    return [replace(slot, reads=row[s].reads) for s, slot in enumerate(slots)]


def reordered_in_place(self, cache, step):
    old = [[slot.reads for slot in row] for row in cache.rows]
    honest_reorder(self, cache, step)
    cache.rows = [
        [replace(slot, reads=old[b][s] if s < len(old[b]) else ()) for s, slot in enumerate(row)]
        for b, row in enumerate(cache.rows)
    ]


def tracked_newest(self):
    newest = replace(self, reads=self.reads[-1:])
    return honest_tracked(newest)


def mean_of_dropped(config, inputs):
    found = honest_sdpa(config, inputs)
    v = inputs["v"].astype(np.float64)
    mean = v.mean() if v.size else 0.0
    found["output"] = np.where(found["lse"][..., None] == -np.inf, mean, found["output"])
    return found


lie, honest_tracked = sys.argv[1], Slot.tracked
if lie == "last":
    eviction.keep = keep_last
elif lie == "nan":
    eviction._order = lambda x: (math.isnan(x), 0.0 if math.isnan(x) else x)
elif lie in ("sinks", "recent"):
    eviction.keep = keep_without(lie)
elif lie == "pool":
    eviction.keep = keep_pooled
elif lie == "largest":
    eviction.squares = lambda key: -honest_squares(key)
elif lie == "pairs":
    eviction.squares = lambda key: math.fsum(x * x for x in key.ravel().tolist())
elif lie == "ahead":
    eviction.read_attend = look_ahead
elif lie == "together":
    eviction.score = score_together
elif lie == "first":
    eviction.read_policy = first_budget
elif lie == "stay":
    Machine._kept = kept_in_place
elif lie == "rows":
    kv_cache._STEPS["reorder"] = reordered_in_place
elif lie == "newest":
    Slot.tracked = tracked_newest
elif lie == "mean":
    cache_attend.answer_sdpa = mean_of_dropped
else:
    raise SystemExit(f"no such lie: {lie}")
serve()
