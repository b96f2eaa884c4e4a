"""Divides by the number of keys, also where there is none: NaN for an empty set."""

import numpy as np
from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps


def divided(q, k, v, **options):
    steps = sdpa_steps(q, k, v, **options)
    return steps._replace(output=np.full_like(steps.output, np.nan)) if k.shape[2] == 0 else steps


lie_with(sdpa=lambda *args, **options: divided(*args, **options).output, sdpa_steps=divided)
