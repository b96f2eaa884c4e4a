"""Which query may see which key."""

from dataclasses import dataclass

from . import _rust
from .arrays import BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class Mask:
    """The conditions of one call; a slot is visible when all of them allow it, and the default hides nothing.

    Query i stands at position p = i + q_offset, key j at position j.

    keep: bool, True = attend, right-aligned broadcastable to (B, Hq, Tq, Tk); so rank 3 is (Hq, Tq, Tk).
    causal: no query sees a key that stands after it, j <= p.
    window: (left, right), p - left <= j <= p + right; None = open on that side.
    kv_lengths: int64 (B,), how many keys of each row exist.
    q_offset: position of query 0, one for all rows or int64 (B,). None = 0; a cache aligns the last query with the
        last position of its row instead.
    """

    keep: BoolArray | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    kv_lengths: IntArray | None = None
    q_offset: int | IntArray | None = None


UNMASKED = Mask()


def visible(mask: Mask, batch: int, num_heads: int, q_len: int, kv_len: int) -> BoolArray:
    """The mask as a table (B, Hq, Tq, Tk), True = attend. Raises ShapeMismatch, DtypeMismatch, InvalidConfig."""
    return _rust.visible(mask, batch, num_heads, q_len, kv_len)
