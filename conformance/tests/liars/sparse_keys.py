"""Lists other keys than the pattern shows.

`column`: the far keys of a stride counted from 0. `replacement`: random blocks drawn with replacement. `all`: scores
every key, and hides some afterwards.
"""

import sys

import numpy as np
from honest import lie_with, module

lie = sys.argv[1]
patterns = module("sparse_patterns")
sparse_steps = module("sparse").sparse_steps


def column(self, i, q_len, kv_len):
    near = range(max(i - self.stride + 1, 0), min(i + 1, kv_len))
    return np.unique([*near, *range(0, min(i + 1, kv_len), self.stride)]).astype(np.int64)


def replacement(self, a, kv_len):
    chosen = set(self._chosen(a, kv_len))
    left = [c for c in range(-(-kv_len // self.block)) if c not in chosen]
    words = patterns.philox_words(self.seed, a * self.random, self.random if left else 0)
    return [left[int(word) * len(left) >> 32] for word in words]


def visits_all(q, k, v, pattern, **options):
    steps = sparse_steps(q, k, v, pattern, **options)
    return steps._replace(visited=np.full(q.shape[2], k.shape[2], np.int64))


if lie == "column":
    patterns.Strided.keys = column
elif lie == "replacement":
    patterns.BigBird.drawn = replacement
lie_with(**({"sparse_steps": visits_all} if lie == "all" else {}))
