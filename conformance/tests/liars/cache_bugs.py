"""A cache with a `square` mask for every chunk, that decodes `windowless`, whose lse is in `base` 2; whose rollback
`forgets` all or `keeps` all, or cuts a ring by its `logical` length; or that reads values by `column`."""

import sys
from dataclasses import replace

import numpy as np
from machine_port import serve

from conformance.oracle import kv_cache

honest_attend, honest_truncate = kv_cache.read_attend, kv_cache._STEPS["truncate"]


def attend_square(sizes, cache, step, inputs, q):
    """Every query sees the whole of its chunk, and the past."""
    return honest_attend(sizes, cache, step | {"causal": False}, inputs, q)


def attend_windowless(sizes, cache, step, inputs, q):
    return honest_attend(sizes, cache, step | ({"window": None} if q.shape[2] == 1 else {}), inputs, q)


def attend_base_two(sizes, cache, step, inputs, q):
    event = honest_attend(sizes, cache, step, inputs, q)
    event.answer["lse"] = event.answer["lse"] / np.log(2)
    return event


def attend_by_column(sizes, cache, step, inputs, q):
    event = honest_attend(sizes, cache, step, inputs, q)
    v = event.inputs["v"]
    return replace(event, inputs=event.inputs | {"v": v.reshape(-1).reshape(v.shape, order="F")})


def forget_all(self, cache, step):
    honest_truncate(self, cache, step)
    self.reset(cache, step)


def keep_all(self, cache, step):
    before = cache.copy()
    honest_truncate(self, cache, step)
    cache.become(before)


def cut_by_length(self, cache, step):
    if self.sizes.window:
        for b, n in enumerate(step["lengths"]):
            cache.rows[b], cache.next[b] = cache.rows[b][:n], n
    else:
        honest_truncate(self, cache, step)


ATTENDS = {
    "square": attend_square,
    "windowless": attend_windowless,
    "base": attend_base_two,
    "column": attend_by_column,
}
CUTS = {"forgets": forget_all, "keeps": keep_all, "logical": cut_by_length}
lie = sys.argv[1]
if lie in ATTENDS:
    kv_cache.read_attend = ATTENDS[lie]
else:
    kv_cache._STEPS["truncate"] = CUTS[lie]
serve()
