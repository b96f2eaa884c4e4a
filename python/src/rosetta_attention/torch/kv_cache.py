"""The contiguous KV cache: keys and values of the past, one block of memory, per-row lengths.

Prefill appends many positions, decode one at a time; `attend` gives the same answer either way. Rows of a
batch have lengths of their own: what lies beyond a row's length is junk and never visible.

Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, N those of all rows that count, Tq queries,
L longest row, D and Dv head sizes.

Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 3 (the cache and its phases).
"""

from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor

from ..checks import check_cache, check_cache_rope, check_reorder, check_room, check_truncate
from .cache import Entry, KeyValueCache, Stats
from .masks import UNMASKED, Mask
from .rope import Rope
from .sdpa import Steps


class KVCache(KeyValueCache):
    """Keys (B, Hkv, L, D) and values (B, Hkv, L, Dv) of the past. A call that raises leaves it as it was.

    capacity: most positions a row may hold; None = grows by doubling. value_dim: None = head_dim.
    rope: turns keys and queries; None = they come turned, or need not be. rope_at: "append" (None), once, as a key
        comes; or "attend", whenever it is attended to.
    Raises ShapeMismatch, InvalidConfig, DtypeMismatch.
    """

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
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        self.batch, self.num_kv_heads, self.head_dim = batch, num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.capacity, self.rope, self.rope_at, self.dtype = capacity, rope, rope_at, dtype
        check_cache("kv_cache", self)
        check_cache_rope("kv_cache", self)
        room = 0 if capacity is None else capacity
        self._k = torch.zeros(batch, num_kv_heads, room, head_dim, dtype=dtype, device=device)
        self._v = torch.zeros(batch, num_kv_heads, room, self.value_dim, dtype=dtype, device=device)
        self._ends = [0] * batch
        self.device = self._k.device

    @property
    def _lengths(self) -> list[int]:
        return self._ends

    def _prepare(self, name: str, k: Tensor, v: Tensor, lengths: Tensor | None, padding: str) -> Entry:
        # 1. check: everything, before anything is changed
        entry = self._entry(name, k, v, lengths, padding)
        check_room(name, self.longest_after(entry.counts), self.capacity)
        return entry

    def _commit(self, entry: Entry) -> None:
        # 2. grow: at least double, so that n appends copy O(n) positions
        needed, room = self.longest_after(entry.counts), self._k.shape[2]
        if needed > room:
            extra = (0, 0, 0, max(needed, 2 * room) - room)  # the last axis first
            grown_k = torch.nn.functional.pad(self._k, extra)  # (B, Hkv, room, D)
            grown_v = torch.nn.functional.pad(self._v, extra)  # (B, Hkv, room, Dv)
            self._k, self._v = grown_k, grown_v  # both or, without the memory for them, neither

        # 3. write: each token of all rows where it belongs, at once
        self._k[entry.row, :, entry.position] = entry.k  # (N, Hkv, D)
        self._v[entry.row, :, entry.position] = entry.v  # (N, Hkv, Dv)

        # 4. advance: only now do the new positions exist
        self._ends = [n + more for n, more in zip(self._lengths, entry.counts, strict=True)]

    def _attend(self, q: Tensor, mask: Mask = UNMASKED, **options: Any) -> Steps:
        # 5. align: the last query stands on the last position of its row
        mask = self._aligned(mask, q.shape[2])

        # 6. attend: over views of what is held
        return self._attend_to(q, self.keys(), self.values(), mask, **options)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] positions.

        Raises ShapeMismatch, InvalidConfig.
        """
        # 7. truncate: the memory stays, the positions beyond are junk from now on
        check_truncate("truncate", lengths, self._lengths)
        self._ends = [int(n) for n in lengths]

    def reset(self) -> None:
        """Forget everything; the memory is kept."""
        # 8. reset: a cache of length 0
        self._ends = [0] * self.batch

    def keys(self) -> Tensor:
        """A view (B, Hkv, L, D); what lies beyond a row's length is junk."""
        return self._k[:, :, : len(self)]

    def values(self) -> Tensor:
        """A view (B, Hkv, L, Dv); what lies beyond a row's length is junk."""
        return self._v[:, :, : len(self)]

    def read(self) -> tuple[Tensor, Tensor, Tensor]:
        """Copies: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond a row's length; lengths (B,)."""
        # 9. read: by selection, since junk may be NaN
        return self._only_held(self.keys()), self._only_held(self.values()), self.lengths

    def reorder(self, index: Sequence[int]) -> None:
        """New row i is a copy of the old row index[i]; one a row. Raises ShapeMismatch, InvalidConfig."""
        check_reorder("reorder", index, self.batch)
        rows = torch.tensor(index, dtype=torch.int64, device=self.device)  # (B,)
        self._k, self._v = self._k[rows], self._v[rows]
        self._ends = [self._lengths[b] for b in index]

    def fork(self) -> Self:
        """A second cache with the same content; neither sees what happens to the other."""
        other = copy(self)
        other._k, other._v = self._k.clone(), self._v.clone()
        return other

    def stats(self) -> Stats:
        """The slots of each row, and the bytes of all."""
        slot = self.num_kv_heads * (self.head_dim + self.value_dim) * self.dtype.itemsize
        return Stats(self.lengths, sum(self._lengths) * slot)
