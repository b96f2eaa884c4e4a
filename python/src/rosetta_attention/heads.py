"""What attention does with heads: split and merge them, share keys and values among them, and the projection.

Letters: B batch, T positions, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk query and key
lengths, D and Dv head sizes, n whatever a head holds.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Array, BoolArray


def linear(x: Array, w: Array, b: Array | None = None) -> Array:
    """y = x Wᵀ + b: (..., in) to (..., out)."""
    y: Array = x @ w.T
    return y if b is None else y + b


def split_heads(x: Array, num_heads: int) -> Array:
    """(B, T, H·n) to (B, H, T, n)."""
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """(B, H, T, n) to (B, T, H·n)."""
    B, H, T, n = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * n)


def group_heads(x: NDArray[Any], num_kv_heads: int) -> NDArray[Any]:
    """(B, Hq, T, n) as (B, Hkv, G, T, n): consecutive query heads share a KV head."""
    B, Hq, T, n = x.shape
    return x.reshape(B, num_kv_heads, Hq // max(num_kv_heads, 1), T, n)


def products(q: Array, k: Array) -> Array:
    """q · k for every query and key of its group: (B, Hq, Tq, D) and (B, Hkv, Tk, D) to (B, Hq, Tq, Tk)."""
    B, Hq, Tq, _ = q.shape
    _, Hkv, Tk, _ = k.shape
    q_groups = group_heads(q, Hkv)  # (B, Hkv, G, Tq, D)
    scores: Array = q_groups @ k[:, :, None].swapaxes(-1, -2)  # (B, Hkv, G, Tq, Tk)
    return scores.reshape(B, Hq, Tq, Tk)


def weighted_sum(weights: Array, v: Array, shown: BoolArray) -> Array:
    """weights · V: (B, Hq, Tq, Tk) and (B, Hkv, Tk, Dv) to (B, Hq, Tq, Dv).

    As 0 · NaN is NaN, values that are not finite are added only where they are seen.
    """
    B, Hq, Tq, _ = weights.shape
    _, Hkv, _, Dv = v.shape
    finite = np.all(np.isfinite(v), axis=-1, keepdims=True)  # (B, Hkv, Tk, 1)
    weights, shown = group_heads(weights, Hkv), group_heads(shown, Hkv)  # (B, Hkv, G, Tq, Tk)
    output: Array = weights @ np.where(finite, v, 0)[:, :, None]  # (B, Hkv, G, Tq, Dv)
    for b, h, j, _ in np.argwhere(~finite):
        seen = shown[b, h, :, :, j]  # (G, Tq)
        output[b, h][seen] += weights[b, h, :, :, j][seen][:, None] * v[b, h, j]
    return output.reshape(B, Hq, Tq, Dv)
