"""The cache of cross-attention: keys and values of the encoder, written once and read at every step.

Beams come and go while the encoder's text stays the same: `reorder` gives each row the keys of the beam that it
continues.

Letters: B batch, Hkv key/value heads, Hq query heads, T positions of the encoder, Tq queries, L longest row, D
and Dv head sizes.

Source: Sutskever et al., "Sequence to sequence learning with neural networks", 2014, section 3.2 (beams);
Vaswani et al., "Attention Is All You Need", 2017, section 3.2.3 (encoder-decoder attention).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Array, IntArray
from .cache import Content, Entry, KeyValueCache, aligned
from .checks import Call, check_cross_attend, check_reorder, check_sizes
from .masks import UNMASKED, Mask
from .sdpa import Steps
from .slot_cache import SlotCache
from .slots import Slots


class CrossCache(SlotCache, KeyValueCache):
    """Keys and values that one append brings. A call that raises leaves it as it was.

    value_dim: None = head_dim. Raises InvalidConfig, DtypeMismatch.
    """

    kind = "cross"

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.batch, self.num_kv_heads, self.head_dim = batch, num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        check_sizes("cross_cache", self, batch=0, num_kv_heads=1, head_dim=1, value_dim=0)
        parts = {
            "k": (num_kv_heads, head_dim, self.dtype),
            "v": (num_kv_heads, self.value_dim, self.dtype),
        }
        self._slots = Slots(batch, parts)
        self._written = False

    def _prepare(self, name: str, k: Array, v: Array, lengths: IntArray | None, padding: str) -> Entry:
        entry = self._entry(name, k, v, lengths, padding, self._slots.next)
        Call(name).config(not self._written, "k", "an empty cross cache", "one that is written already")
        return entry

    def _commit(self, entry: Entry) -> None:
        # 1. write once: until a reset, nothing can be added
        self._slots.make_room(self.longest_after(entry.counts))
        self._slots.write(entry.rows)  # k (Hkv, count, D), v (Hkv, count, Dv)
        self._slots.advance(entry.counts)
        self._written = True

    def check_attend(self, name: str, q: Any, length: int, **options: Any) -> None:
        """Also that no option speaks of an order between queries and keys."""
        super().check_attend(name, q, length, **options)
        check_cross_attend(name, options.get("mask", UNMASKED))

    def _attend(self, q: Array, mask: Mask = UNMASKED, **options: Any) -> Steps:
        # 2. attend: every query to all that its row holds
        slots = self._slots
        mask = aligned(mask, q.shape[2], slots.lengths, slots.next, slots.positions[:, : len(self)])
        return self._attend_to(q, slots.held("k"), slots.held("v"), mask, **options)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Raises InvalidConfig: what was written once stays as it is."""
        Call("truncate").config(False, "lengths", "no truncation of a cross cache", list(lengths))

    def reset(self) -> None:
        """Forget everything; the cache can be written again."""
        self._slots.reset()
        self._written = False

    def reorder(self, index: Sequence[int]) -> None:
        """New row i is a copy of the old row index[i]; one a row. Raises ShapeMismatch, InvalidConfig."""
        check_reorder("reorder", index, self.batch)
        # 3. reorder: out of place, since a beam may go on in several rows
        self._slots = self._slots.reordered(index)

    def read(self) -> tuple[Array, Array, IntArray]:
        """Copies: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond a row's length; lengths (B,)."""
        return self._slots.read("k"), self._slots.read("v"), self.lengths

    def describe(self) -> dict[str, str]:
        """What a file says of the cache beside kind, dtype and batch."""
        return {name: text for name, text in super().describe().items() if name != "rope"}

    def restore(self, content: Content) -> None:
        """Holds this and nothing else; written, unless all rows are empty."""
        super().restore(content)
        self._written = len(self) > 0
