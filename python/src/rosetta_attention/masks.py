"""Which query may see which key.

A `Mask` holds conditions, and a slot is visible when all of them allow it. They speak of *positions*: query i
stands at position p = i + q_offset, key j at position j, unless kv_positions say where it stands.

    causal       j <= p
    window       p - left <= j <= p + right
    kv_lengths   j < kv_lengths[b]
    keep         keep[b, h, i, j]

Letters: B batch, Hq query heads, Tq and Tk query and key lengths.
"""

from dataclasses import dataclass

import numpy as np

from .arrays import BoolArray, IntArray
from .checks import FARTHEST, check_mask


@dataclass(frozen=True, eq=False)
class Mask:
    """The conditions of one call; the default hides nothing.

    keep: bool, True = attend, right-aligned broadcastable to (B, Hq, Tq, Tk); so rank 3 is (Hq, Tq, Tk).
    causal: no query sees a key that stands after it.
    window: (left, right), how many keys on each side of itself a query sees; None = open on that side.
    kv_lengths: int64 (B,), how many keys of each row exist.
    q_offset: position of query 0, one for all rows or int64 (B,). None = 0; a cache aligns the last query
        with the last position of its row instead.
    kv_positions: int64 (B, Tk), where each key stands, for causal and window; None = 0, 1, ... Only caches set it.
    """

    keep: BoolArray | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    kv_lengths: IntArray | None = None
    q_offset: int | IntArray | None = None
    kv_positions: IntArray | None = None


UNMASKED = Mask()


def visible(mask: Mask, batch: int, num_heads: int, q_len: int, kv_len: int) -> BoolArray:
    """The mask as a table (B, Hq, Tq, Tk), True = attend.

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    check_mask("visible", mask, (batch, num_heads, q_len, kv_len))
    return visible_tile(mask, (batch, num_heads, q_len, kv_len), slice(0, q_len), slice(0, kv_len))


def visible_tile(mask: Mask, shape: tuple[int, int, int, int], rows: slice, columns: slice) -> BoolArray:
    """The part of the table of `shape` (B, Hq, Tq, Tk) in these rows and columns: (B, Hq, tq, tk)."""
    left, right = mask.window if mask.window is not None else (None, None)

    # 1. positions: of every query and of every key, and how far to the right of the query the key stands
    offset = np.asarray(0 if mask.q_offset is None else mask.q_offset)  # () or (B,)
    offset = np.clip(offset, -FARTHEST, FARTHEST)  # so that no sum wraps around
    p = offset.reshape(-1, 1, 1, 1) + np.arange(rows.start, rows.stop)[:, None]  # (B or 1, 1, tq, 1)
    j = np.arange(columns.start, columns.stop)  # (tk,)
    stands = j if mask.kv_positions is None else mask.kv_positions[:, None, None, columns]  # (..., tk)
    distance = stands - p  # (B or 1, 1, tq, tk)
    table = np.ones((*shape[:2], p.shape[2], j.size), dtype=bool)  # (B, Hq, tq, tk)

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
        table &= np.broadcast_to(mask.keep, shape)[:, :, rows, columns]
    return table
