"""KV heads tiled (0, 1, 0, 1) and not repeated (0, 0, 1, 1)."""

import numpy as np
from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps


def tiled_steps(q, k, v, **options):
    if q.ndim == k.ndim == v.ndim == 4 and k.shape[1] and q.shape[1] % k.shape[1] == 0:
        times = q.shape[1] // k.shape[1]
        k, v = (np.tile(x, (1, times, 1, 1)) for x in (k, v))
    return sdpa_steps(q, k, v, **options)


lie_with(sdpa=lambda *args, **options: tiled_steps(*args, **options).output, sdpa_steps=tiled_steps)
