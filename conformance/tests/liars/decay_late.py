"""Corrects the state first and lets it decay afterwards."""

import math

import numpy as np
from honest import lie_with, module

gated = module("gated_linear")
honest = gated.gated_linear


def late(q, k, v, *, rule="linear", state=None, decay=None, beta=None, scale=None):
    steps = honest(q, k, v, rule=rule, state=state, decay=decay, beta=beta, scale=scale)
    if rule != "gated_delta":
        return steps
    held = np.zeros_like(steps.state) if state is None else state
    q = (q * (1 / math.sqrt(q.shape[3]) if scale is None else scale)).astype(q.dtype)
    output = np.empty_like(steps.output)
    for t in range(q.shape[2]):
        k_t, v_t = k[:, :, t, :, None], v[:, :, t, None]
        wrong = beta[:, :, t, :, None] * (v_t - k_t.swapaxes(2, 3) @ held)
        held = np.exp(decay[:, :, t, :, None]) * held + k_t * wrong
        output[:, :, t : t + 1] = gated.read_state(q[:, :, t : t + 1], held)
    return gated.GatedSteps(output, held)


lie_with(gated_linear=late)
