"""The rotating KV cache: the last W positions and a few first ones, whatever the length of the text.

A query at position p sees key j iff j <= p and (p - j < W or j < keep). What no later query can see is forgotten
before new tokens come, not after, so that a chunk longer than the window attends as in a full cache with that
mask. The first tokens stay because a trained model leaves weight on them that has to go somewhere.

Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L slots of the longest row,
D and Dv head sizes, W window.

Sources: Jiang et al., "Mistral 7B", 2023, section 2 (rolling buffer cache); Xiao et al., "Efficient streaming
language models with attention sinks", 2023.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Array, BoolArray, IntArray
from .cache import Entry, KeyValueCache, aligned
from .checks import check_cache_rope, check_rollback, check_rotating, check_sizes, check_truncate
from .masks import UNMASKED, Mask
from .rope import Rope
from .sdpa import Steps
from .slot_cache import SlotCache
from .slots import Slots


class RotatingCache(SlotCache, KeyValueCache):
    """Keys and values of the last `window` positions and the first `keep`. A call that raises leaves it as it was.

    value_dim: None = head_dim. rope: turns keys and queries; None = neither. rope_at: as for KVCache.
    Raises ShapeMismatch, InvalidConfig, DtypeMismatch.
    """

    kind = "rotating"

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        window: int,
        keep: int = 0,
        rope: Rope | None = None,
        rope_at: str | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.batch, self.num_kv_heads, self.head_dim = batch, num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.window, self.keep, self.rope, self.rope_at = window, keep, rope, rope_at
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        check_sizes("rotating_cache", self, batch=0, num_kv_heads=1, head_dim=1, value_dim=0)
        check_rotating("rotating_cache", self)
        check_cache_rope("rotating_cache", self)
        parts = {
            "k": (num_kv_heads, head_dim, self.dtype),
            "v": (num_kv_heads, self.value_dim, self.dtype),
        }
        self._slots = Slots(batch, parts)

    @property
    def row_lengths(self) -> IntArray:
        """How many positions each row has taken in, held or not: a copy, (B,)."""
        return self._slots.next.copy()

    def _seen_by_next(self) -> BoolArray:
        """(B, L), which slots a query on the next position of its row could see."""
        held = self._slots.positions[:, : len(self)]  # (B, L)
        seen: BoolArray = (held > self._slots.next[:, None] - self.window) | (held < self.keep)
        return seen

    def _prepare(self, name: str, k: Array, v: Array, lengths: IntArray | None, padding: str) -> Entry:
        # 1. check: everything, before anything is changed
        return self._entry(name, k, v, lengths, padding, self._slots.next)

    def _stays(self, counts: IntArray | int) -> BoolArray:
        """(B, L), which slots are still held when so many tokens come; a row without new ones forgets nothing."""
        idle = np.broadcast_to(np.equal(counts, 0), (self.batch,))[:, None]  # (B, 1)
        stays: BoolArray = self._seen_by_next() | idle
        return stays

    def longest_after(self, counts: IntArray | int) -> int:
        """What L would be after an append of so many tokens in each row."""
        exists = np.arange(len(self)) < self._slots.lengths[:, None]  # (B, L)
        left = np.sum(self._stays(counts) & exists, axis=1)  # (B,)
        return int((left + counts).max(initial=0))

    def _commit(self, entry: Entry) -> None:
        # 2. forget: what no query from here on can see
        self._slots.keep(self._stays(entry.counts))

        # 3. write: all that came, even if it is longer than the window
        self._slots.make_room(super().longest_after(entry.counts))
        self._slots.write(entry.rows)  # k (Hkv, count, D), v (Hkv, count, Dv)

        # 4. advance: positions go on, however few slots are held
        self._slots.advance(entry.counts)

    def _attend(self, q: Array, mask: Mask = UNMASKED, **options: Any) -> Steps:
        # 5. align: the last query stands on the last position of its row
        slots, Tq = self._slots, q.shape[2]
        j = slots.positions[:, None, None, : len(self)]  # (B, 1, 1, L)
        mask = aligned(mask, Tq, slots.lengths, slots.next, j[:, 0, 0])
        p = np.asarray(mask.q_offset)[:, None, None, None] + np.arange(Tq)[:, None]  # (B, 1, Tq, 1)

        # 6. attend: to the window and the first tokens, whatever else hides a slot
        seen = (j <= p) & ((p - j < self.window) | (j < self.keep))  # (B, 1, Tq, L)
        mask = replace(mask, keep=seen if mask.keep is None else seen & mask.keep)
        return self._attend_to(q, self._slots.held("k"), self._slots.held("v"), mask, **options)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Roll back: row b has taken in its first lengths[b] positions and no more.

        Raises ShapeMismatch; InvalidConfig also where part of the window that a query would then see is forgotten.
        """
        # 7. truncate: only as far as the window of that length is still held
        slots = self._slots
        check_truncate("truncate", lengths, slots.next.tolist())
        held = slots.positions[:, : len(self)]  # (B, L)
        check_rollback(
            "truncate", lengths, [row[:n] for row, n in zip(held, slots.lengths, strict=True)], self
        )
        limits = np.array(lengths, np.int64).reshape(-1)  # (B,)
        slots.keep(held < limits[:, None])
        slots.next = limits

    def reset(self) -> None:
        """Forget everything; the memory is kept."""
        # 8. reset: a cache of length 0, whose next position is 0
        self._slots.reset()

    def slot_positions(self) -> IntArray:
        """The position of every slot that `read` gives: (B, L), -1 beyond a row's length."""
        return self._readable().read_positions()

    def read(self) -> tuple[Array, Array, IntArray]:
        """Copies of what a next query could see: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond a
        row's length; lengths (B,).
        """
        # 9. read: less than what is held, when the last chunk was long
        slots = self._readable()
        return slots.read("k"), slots.read("v"), slots.lengths

    def _readable(self) -> Slots:
        slots = self._slots.copy()
        slots.keep(self._seen_by_next())
        return slots

    def describe(self) -> dict[str, str]:
        """What a file says of the cache beside kind, dtype and batch."""
        return super().describe() | {"window": str(self.window), "keep": str(self.keep)}
