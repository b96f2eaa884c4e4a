"""Some library has told the processor to take subnormal numbers for 0."""

import numpy as np
from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps


def flushed(*args, **options):
    steps = sdpa_steps(*args, **options)
    tiny = np.finfo(steps.output.dtype).tiny
    return steps._replace(output=np.where(np.abs(steps.output) < tiny, 0, steps.output))


lie_with(sdpa=lambda *args, **options: flushed(*args, **options).output, sdpa_steps=flushed)
