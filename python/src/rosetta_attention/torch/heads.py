"""What attention does with heads: split and merge them, and share keys and values among them.

Letters: B batch, T positions, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk query and key
lengths, D and Dv head sizes, n whatever a head holds.
"""

import torch
from torch import Tensor


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, H·n) to (B, H, T, n)."""
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, n) to (B, T, H·n)."""
    return x.transpose(1, 2).flatten(2)


def group_heads(x: Tensor, num_kv_heads: int) -> Tensor:
    """(B, Hq, T, n) as (B, Hkv, G, T, n): consecutive query heads share a KV head."""
    B, Hq, T, n = x.shape
    return x.reshape(B, num_kv_heads, Hq // max(num_kv_heads, 1), T, n)


def products(q: Tensor, k: Tensor) -> Tensor:
    """q · k for every query and key of its group: (B, Hq, Tq, D) and (B, Hkv, Tk, D) to (B, Hq, Tq, Tk)."""
    B, Hq, Tq, _ = q.shape
    _, Hkv, Tk, _ = k.shape
    scores = group_heads(q, Hkv) @ k[:, :, None].transpose(-1, -2)  # (B, Hkv, G, Tq, Tk)
    return scores.reshape(B, Hq, Tq, Tk)


def weighted_sum(weights: Tensor, v: Tensor, shown: Tensor) -> Tensor:
    """weights · V: (B, Hq, Tq, Tk) and (B, Hkv, Tk, Dv) to (B, Hq, Tq, Dv).

    As 0 · NaN is NaN, values that are not finite are added only where they are seen.
    """
    B, Hq, Tq, _ = weights.shape
    _, Hkv, _, Dv = v.shape
    finite = torch.all(torch.isfinite(v), dim=-1, keepdim=True)  # (B, Hkv, Tk, 1)
    weights, shown = group_heads(weights, Hkv), group_heads(shown, Hkv)  # (B, Hkv, G, Tq, Tk)
    output = weights @ torch.where(finite, v, 0)[:, :, None]  # (B, Hkv, G, Tq, Dv)
    for b, h, j, _ in torch.argwhere(~finite).tolist():
        seen = shown[b, h, :, :, j]  # (G, Tq)
        output[b, h][seen] += weights[b, h, :, :, j][seen][:, None] * v[b, h, j]
    return output.reshape(B, Hq, Tq, Dv)
