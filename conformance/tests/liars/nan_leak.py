"""Multiplies hidden values by 0, which NaN survives."""

import numpy as np
from honest import lie_with, module

sdpa = module("sdpa")


def weighted_sum(weights, v, shown):
    groups = weights.shape[1] // max(v.shape[1], 1)
    return (weights @ np.repeat(v, groups, axis=1)).astype(v.dtype)


sdpa.weighted_sum = weighted_sum
lie_with()
