"""A cache that places the queries of every row by the `longest` one; or whose reset leaves a `stale` slot."""

import sys
from dataclasses import replace

from machine_port import serve

from conformance.oracle import kv_cache

honest_attend, honest_reset = kv_cache.read_attend, kv_cache._STEPS["reset"]


def attend_by_longest(sizes, cache, step, inputs, q):
    """As if all rows were as long."""
    longest = replace(cache, next=[max(cache.next, default=0)] * len(cache.next))
    return honest_attend(sizes, longest, step, inputs, q)


def reset_but_one(self, cache, step):
    """The first slot of every row stays."""
    rows = [row[:1] for row in cache.rows]
    honest_reset(self, cache, step)
    cache.rows, cache.next = rows, [len(row) for row in rows]


lie = sys.argv[1]
if lie == "longest":
    kv_cache.read_attend = attend_by_longest
elif lie == "stale":
    kv_cache._STEPS["reset"] = reset_but_one
else:
    raise SystemExit(f"no lie is called {lie}")
serve()
