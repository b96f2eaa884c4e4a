"""Rounds the weights of half types before the weighted sum."""

import numpy as np
from honest import lie_with, module

sdpa = module("sdpa")


def rounded_weights(q, k, v, **options):
    steps = sdpa.sdpa_steps(q, k, v, **options)
    if q.dtype.itemsize > 2 or not k.shape[2]:
        return steps
    values = np.repeat(v, q.shape[1] // v.shape[1], axis=1).astype(np.float32)
    output = steps.weights.astype(np.float32) @ values  # steps.weights has been rounded
    return steps._replace(output=output.astype(q.dtype))


lie_with(sdpa_steps=rounded_weights)
