"""The contiguous KV cache: keys and values of the past, one block of memory, per-row lengths.

Prefill appends many positions, decode one at a time; `attend` gives the same answer either way. Rows of a
batch have lengths of their own: what lies beyond a row's length is junk and never visible. Every slot has a
position, and keeps it when others are evicted; a shift moves positions to close the gap.

Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, D and Dv
head sizes.

Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 3 (the cache and its phases).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Array, IntArray
from .cache import Entry, aligned
from .cache_rope import turned
from .checks import check_cache, check_cache_rope, check_room, check_tracking, check_truncate
from .evicting_cache import EvictingCache
from .masks import UNMASKED, Mask
from .rope import Rope
from .sdpa import Steps
from .slots import Slots


class KVCache(EvictingCache):
    """Keys (B, Hkv, L, D) and values (B, Hkv, L, Dv) of the past. A call that raises leaves it as it was.

    capacity: most positions a row may hold; None = grows by doubling. value_dim: None = head_dim.
    rope: turns keys and queries; None = they come turned, or need not be. rope_at: "append" (None), where a key is
    turned as it comes, or "attend", where keys are held as they came and turned whenever they are attended to.
    track: every attend adds to each slot the weights that it gives it.
    Raises ShapeMismatch, InvalidConfig, DtypeMismatch.
    """

    kind = "contiguous"

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        capacity: int | None = None,
        rope: Rope | None = None,
        rope_at: str | None = None,
        track: bool = False,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.batch, self.num_kv_heads, self.head_dim = batch, num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.capacity, self.rope, self.rope_at, self.track = capacity, rope, rope_at, track
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        check_cache("kv_cache", self)
        check_cache_rope("kv_cache", self)
        check_tracking("kv_cache", track)
        parts = {
            "k": (num_kv_heads, head_dim, self.dtype),
            "v": (num_kv_heads, self.value_dim, self.dtype),
        }
        self._slots = Slots(batch, parts | self._beside(), 0 if capacity is None else capacity)

    def _prepare(self, name: str, k: Array, v: Array, lengths: IntArray | None, padding: str) -> Entry:
        # 1. check: everything, before anything is changed
        entry = self._entry(name, k, v, lengths, padding, self._slots.next)
        check_room(name, self.longest_after(entry.counts), self.capacity)
        return entry

    def _commit(self, entry: Entry) -> None:
        # 2. grow: at least double, so that n appends copy O(n) positions
        self._slots.make_room(self.longest_after(entry.counts))

        # 3. write: each row at its own end, k (Hkv, count, D) and v (Hkv, count, Dv)
        self._slots.write(entry.rows)

        # 4. advance: only now do the new positions exist
        self._slots.advance(entry.counts)

    def _attend(self, q: Array, mask: Mask = UNMASKED, **options: Any) -> Steps:
        # 5. align: the last query stands on the last position of its row
        slots = self._slots
        positions = slots.positions[:, : len(self)]  # (B, L)
        mask = aligned(mask, q.shape[2], slots.lengths, slots.next, positions)

        # 6. attend: over views of what is held
        return self._attend_to(q, self.keys(), self.values(), mask, **options)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] slots, and goes on after the last of them.

        Raises ShapeMismatch, InvalidConfig.
        """
        # 7. truncate: the memory stays, the slots beyond are junk from now on
        check_truncate("truncate", lengths, self._slots.lengths.tolist())
        self._slots.truncate(lengths)

    def reset(self) -> None:
        """Forget everything; the memory is kept."""
        # 8. reset: a cache of length 0, whose next position is 0
        self._slots.reset()

    def _turn(self, moved: Sequence[IntArray], by: int) -> None:
        for keys, which in zip(self._slots.parts["k"], moved, strict=True):
            keys[:, which] = turned(keys[None, :, which], self.held_rope, by)[0]  # (Hkv, count, D)

    def keys(self) -> Array:
        """A view (B, Hkv, L, D); what lies beyond a row's length is junk."""
        return self._slots.held("k")

    def values(self) -> Array:
        """A view (B, Hkv, L, Dv); what lies beyond a row's length is junk."""
        return self._slots.held("v")

    def read(self) -> tuple[Array, Array, IntArray]:
        """Copies: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond a row's length; lengths (B,)."""
        # 9. read: by selection, since junk may be NaN
        return self._slots.read("k"), self._slots.read("v"), self.lengths
