"""Right every time, and never twice the same: the last bit is a matter of chance."""

import numpy as np
from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps
chance = np.random.default_rng()


def noisy_steps(*args, **options):
    steps = sdpa_steps(*args, **options)
    direction = np.where(chance.random(steps.output.shape) < 0.5, -np.inf, np.inf).astype(steps.output.dtype)
    return steps._replace(output=np.nextafter(steps.output, direction))


lie_with(sdpa=lambda *args, **options: noisy_steps(*args, **options).output, sdpa_steps=noisy_steps)
