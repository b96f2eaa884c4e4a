"""Caps after masking: tanh turns -inf into -cap, and hidden keys receive weight."""

import numpy as np
from honest import lie_with, module

sdpa = module("sdpa")
honest_steps, honest_softmax = sdpa.sdpa_steps, sdpa.softmax_lse


def late_cap(*args, softcap=None, **options):
    def cap_first(x, sink=None):
        return honest_softmax(
            x if softcap is None else softcap * np.tanh(x / np.float64(softcap).astype(x.dtype)), sink
        )

    sdpa.softmax_lse = cap_first
    return honest_steps(*args, softcap=softcap, **options)


lie_with(sdpa=lambda *args, **options: late_cap(*args, **options).output, sdpa_steps=late_cap)
