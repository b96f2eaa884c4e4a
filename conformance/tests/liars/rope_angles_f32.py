"""Multiplies position and frequency in f32 before it takes sine and cosine."""

from dataclasses import replace

import numpy as np
from honest import lie_with, module

rope = module("rope")
frequencies_of = module("rope_scaling").rope_frequencies


def rope_in_f32(x, options, *, positions=None, cos=None, sin=None):
    if cos is not None or options.scaling is not None:
        return rope.rope_steps(x, options, positions=positions, cos=cos, sin=sin)
    B, _, T, D = x.shape
    given = np.broadcast_to(options.offset + np.arange(T), (B, T)) if positions is None else positions
    R = options.rotary_dim or D
    angles = given.reshape(-1, 1).astype(np.float32) * frequencies_of(options.base, R).astype(np.float32)
    tables = {"cos": np.cos(angles).astype(x.dtype), "sin": np.sin(angles).astype(x.dtype)}
    rows = np.arange(B * T).reshape(B, T)
    return rope.rope_steps(x, replace(options, base=10000.0, offset=0), positions=rows, **tables)


lie_with(rope_steps=rope_in_f32)
