"""Writing new positions into a cache of fixed length, each row of the batch at its own place.

    output[b, ..., start_b + t, :] = update[b, ..., t, :]

Linear, or circular: then the cache is a ring, and the place is taken modulo its length.

Letters: B batch, L positions of the cache, T new positions, n what a position holds.

Source: the operator TensorScatter of ONNX, opset 24.
"""

import numpy as np

from .arrays import Array, IntArray
from .checks import check_cache_write


def cache_write(
    cache: Array, update: Array, write_indices: IntArray | None = None, *, circular: bool = False
) -> Array:
    """A copy of `cache` (B, ..., L, n) with `update` (B, ..., T, n) in it.

    write_indices: int64 (B,), where each row's first new position goes; None = 0.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig; CapacityExceeded for an update that does not fit.
    """
    check_cache_write("cache_write", cache, update, write_indices, circular)
    L, T = cache.shape[-2], update.shape[-2]
    output = cache.copy()  # (B, ..., L, n)
    for b in range(cache.shape[0]):
        # 1. positions: T in a row, round the ring if it is one
        start = 0 if write_indices is None else write_indices[b] % max(L, 1) if circular else write_indices[b]
        positions = (start + np.arange(T)) % max(L, 1)  # (T,)

        # 2. write: over what was there
        output[b][..., positions, :] = update[b]  # (..., T, n)
    return output
