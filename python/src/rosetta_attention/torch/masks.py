"""Which query may see which key.

A `Mask` holds conditions, and a slot is visible when all of them allow it. They speak of *positions*: query i
stands at position p = i + q_offset, key j at position j.

    causal       j <= p
    window       p - left <= j <= p + right
    kv_lengths   j < kv_lengths[b]
    keep         keep[b, h, i, j]

Letters: B batch, Hq query heads, Tq and Tk query and key lengths.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import FARTHEST, check_mask


@dataclass(frozen=True, eq=False)
class Mask:
    """The conditions of one call; the default hides nothing.

    keep: bool, True = attend, right-aligned broadcastable to (B, Hq, Tq, Tk); so rank 3 is (Hq, Tq, Tk).
    causal: no query sees a key that stands after it.
    window: (left, right), how many keys on each side of itself a query sees; None = open on that side.
    kv_lengths: int64 (B,), how many keys of each row exist.
    q_offset: position of query 0, one for all rows or int64 (B,). None = 0; a cache aligns the last query
        with the last position of its row instead.
    """

    keep: Tensor | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    kv_lengths: Tensor | None = None
    q_offset: int | Tensor | None = None


UNMASKED = Mask()


def visible(
    mask: Mask,
    batch: int,
    num_heads: int,
    q_len: int,
    kv_len: int,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """The mask as a table (B, Hq, Tq, Tk), True = attend; `device`: that of its tensors.

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    check_mask("visible", mask, (batch, num_heads, q_len, kv_len))
    left, right = mask.window if mask.window is not None else (None, None)

    # 1. positions: of every query and of every key, and how far to the right of the query the key stands
    offset = torch.as_tensor(0 if mask.q_offset is None else mask.q_offset, device=device)  # () or (B,)
    offset = offset.clamp(-FARTHEST, FARTHEST)  # so that no sum wraps around
    p = offset.reshape(-1, 1, 1, 1) + torch.arange(q_len, device=device)[:, None]  # (B or 1, 1, Tq, 1)
    j = torch.arange(kv_len, device=device)  # (Tk,)
    distance = j - p  # (B or 1, 1, Tq, Tk)
    table = torch.ones(batch, num_heads, q_len, kv_len, dtype=torch.bool, device=device)  # (B, Hq, Tq, Tk)

    # 2. causal: nothing after the query
    if mask.causal:
        table &= distance <= 0

    # 3. window: nothing too far to the left or to the right
    if left is not None:
        table &= -left <= distance
    if right is not None:
        table &= distance <= right

    # 4. lengths: nothing beyond the end of the row
    if mask.kv_lengths is not None:
        table &= j < mask.kv_lengths.reshape(-1, 1, 1, 1)

    # 5. keep: nothing that the caller excludes
    if mask.keep is not None:
        table &= mask.keep
    return table
