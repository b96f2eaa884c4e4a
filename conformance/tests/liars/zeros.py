"""The right shape and dtype, and nothing in it."""

import numpy as np
from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps


def zero_steps(*args, **options):
    steps = sdpa_steps(*args, **options)
    return type(steps)(*(np.zeros_like(x) for x in steps))


lie_with(sdpa=lambda *args, **options: zero_steps(*args, **options).output, sdpa_steps=zero_steps)
