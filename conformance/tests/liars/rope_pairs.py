"""Pairs neighbours for halves, and the reverse (other); or pairs halves at the angles of neighbours (mixed)."""

import sys

import numpy as np
from honest import lie_with, module

rope = module("rope")
pairs, rope_steps = rope._pairs, rope.rope_steps


def mixed(x, options, **more):
    steps = rope_steps(x, options, **more)
    half = steps.cos.shape[-1]
    if options.interleaved:
        return steps
    channels = np.arange(2 * half)
    cos, sin = (turn[:, None][..., channels // 2] for turn in (steps.cos, steps.sin))
    partner = x[..., (channels + half) % max(2 * half, 1)] * np.where(channels < half, -1, 1).astype(x.dtype)
    output = x.copy()
    output[..., : 2 * half] = x[..., : 2 * half] * cos + partner * sin
    return steps._replace(output=output)


if sys.argv[1] == "other":
    rope._pairs = lambda rotary_dim, interleaved: pairs(rotary_dim, not interleaved)
lie_with(rope_steps=mixed if sys.argv[1] == "mixed" else rope_steps)
