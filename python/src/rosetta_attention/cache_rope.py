"""Rotary positions in a cache: a key is turned when it comes, and turned further when it is shifted.

Rotations add up, so a key that was turned by j and then by n stands where it would at j + n. A cache may also hold
keys as they came, and turn all of them at every attend: more work, but a shift then moves numbers alone.

Letters: B batch, H heads, T positions, D head size, R rotated channels.

Source: Xiao et al., "Efficient streaming language models with attention sinks", 2023, section 3.2 (positions
within the cache).
"""

import numpy as np

from .arrays import Array, IntArray
from .cast import NAMES, narrow, widen
from .rope import Rope, rope
from .rope_scaling import rope_frequencies


def rotated(x: Array, options: Rope | None, start: IntArray) -> Array:
    """`x` (B, H, T, D) turned by the positions start (B,), start + 1, ...; as it is without options."""
    if options is None:
        return x
    return rope(x, options, positions=start[:, None] + np.arange(x.shape[2]))


def turned(x: Array, options: Rope | None, by: int) -> Array:
    """`x` (B, H, T, D), which is turned already, by as many positions more: lengths do not change."""
    if options is None:
        return x
    wide = widen(x)
    R = x.shape[3] if options.rotary_dim is None else options.rotary_dim
    frequencies = rope_frequencies(options.base, R)  # (R/2,)
    if options.scaling is not None:
        frequencies = options.scaling.frequencies(options.base, R, np.zeros((1, 1)))
    angles = by * np.atleast_2d(frequencies)  # (1, R/2)
    further = rope(
        wide,
        Rope(interleaved=options.interleaved, rotary_dim=options.rotary_dim),
        positions=np.zeros((x.shape[0], x.shape[2]), np.int64),
        cos=np.cos(angles).astype(wide.dtype),
        sin=np.sin(angles).astype(wide.dtype),
    )
    return narrow(further, NAMES[x.dtype])
