"""Measures from the key to the query."""

import numpy as np
from honest import lie_with, module

steps = module("relative_bias").relative_bias_steps


def reversed_distances(scores, table, *, bidirectional=True, **options):
    n = table.shape[0] // 2
    turned = np.concatenate([table[n:], table[:n]]) if bidirectional else table
    result = steps(scores, turned, bidirectional=bidirectional, **options)
    buckets = np.where(result.buckets >= n, result.buckets - n, result.buckets + n)
    return result._replace(buckets=buckets if bidirectional else result.buckets)


lie_with(relative_bias_steps=reversed_distances)
