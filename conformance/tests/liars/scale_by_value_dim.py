"""One variable for two head sizes: the default scale comes from the values."""

import math

from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps


def confused(q, k, v, *, scale=None, **options):
    scale = 1 / math.sqrt(max(v.shape[-1], 1)) if scale is None else scale
    return sdpa_steps(q, k, v, scale=scale, **options)


lie_with(sdpa=lambda *args, **options: confused(*args, **options).output, sdpa_steps=confused)
