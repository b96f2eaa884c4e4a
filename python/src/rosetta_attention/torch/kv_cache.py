"""The contiguous KV cache: keys and values of the past, one block of memory, per-row lengths.

Prefill appends many positions, decode one at a time; `attend` gives the same answer either way. Rows of a
batch have lengths of their own: what lies beyond a row's length is junk and never visible.

Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, D and Dv
head sizes.

Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 3 (the cache and its phases).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..checks import check_append, check_attend, check_cache, check_room, check_truncate
from .masks import UNMASKED, Mask
from .sdpa import Steps, sdpa_steps


class KVCache:
    """Keys (B, Hkv, L, D) and values (B, Hkv, L, Dv) of the past. A call that raises leaves it as it was.

    capacity: most positions a row may hold; None = grows by doubling. value_dim: None = head_dim.
    Raises InvalidConfig, DtypeMismatch.
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        self.batch, self.num_kv_heads, self.head_dim = batch, num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.capacity = capacity
        self.dtype = dtype
        check_cache("kv_cache", self)
        room = 0 if capacity is None else capacity
        self._k = torch.zeros(batch, num_kv_heads, room, head_dim, dtype=dtype, device=device)
        self._v = torch.zeros(batch, num_kv_heads, room, self.value_dim, dtype=dtype, device=device)
        self._lengths = torch.zeros(batch, dtype=torch.int64, device=device)  # (B,)

    def __len__(self) -> int:
        """L, the length of the longest row."""
        return max(self._lengths.tolist(), default=0)

    @property
    def lengths(self) -> Tensor:
        """How many positions each row holds: a copy, (B,)."""
        return self._lengths.clone()

    def append(self, k: Tensor, v: Tensor, lengths: Tensor | None = None) -> None:
        """Add `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv), T >= 0, after the last position of each row.

        lengths: (B,), how many of the T count in each row; None = all.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
        """
        # 1. check: everything, before anything is changed
        check_append("append", k, v, lengths, self)
        counts = torch.full_like(self._lengths, k.shape[2]) if lengths is None else lengths  # (B,)
        needed = max((self._lengths + counts).tolist(), default=0)
        check_room("append", needed, self.capacity)

        # 2. grow: at least double, so that n appends copy O(n) positions
        room = self._k.shape[2]
        if needed > room:
            extra = (0, 0, 0, max(needed, 2 * room) - room)  # the last axis first
            grown_k = torch.nn.functional.pad(self._k, extra)  # (B, Hkv, room, D)
            grown_v = torch.nn.functional.pad(self._v, extra)  # (B, Hkv, room, Dv)
            self._k, self._v = grown_k, grown_v  # both or, without the memory for them, neither

        # 3. write: each row at its own end
        for b in range(self.batch):
            start, count = int(self._lengths[b]), int(counts[b])
            self._k[b, :, start : start + count] = k[b, :, :count]  # (Hkv, count, D)
            self._v[b, :, start : start + count] = v[b, :, :count]  # (Hkv, count, Dv)

        # 4. advance: only now do the new positions exist
        self._lengths = self._lengths + counts

    def attend(
        self,
        q: Tensor,
        *,
        mask: Mask = UNMASKED,
        bias: Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Attention of `q` (B, Hq, Tq, D) over the positions held: (B, Hq, Tq, Dv).

        mask, bias: over the L positions held. A `mask.q_offset` of None puts the last query on the last
        position of its row; `mask.kv_lengths` is the cache's own and must be None. scale, softcap: as for
        sdpa.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.attend_steps(q, mask=mask, bias=bias, scale=scale, softcap=softcap).output

    def attend_steps(
        self,
        q: Tensor,
        *,
        mask: Mask = UNMASKED,
        bias: Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Steps:
        """`attend` with all its intermediates; same arguments and errors."""
        check_attend("attend", q, mask)

        # 5. align: the last query stands on the last position of its row
        q_offset = self._lengths - q.shape[2] if mask.q_offset is None else mask.q_offset  # (B,)
        mask = replace(mask, kv_lengths=self._lengths, q_offset=q_offset)

        # 6. attend: over views of what is held
        return sdpa_steps(q, self.keys(), self.values(), mask=mask, bias=bias, scale=scale, softcap=softcap)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] positions.

        Raises ShapeMismatch, InvalidConfig.
        """
        # 7. truncate: the memory stays, the positions beyond are junk from now on
        check_truncate("truncate", lengths, self._lengths.tolist())
        self._lengths = self._lengths.new_tensor(lengths)  # (B,)

    def reset(self) -> None:
        """Forget everything; the memory is kept."""
        # 8. reset: a cache of length 0
        self._lengths = torch.zeros_like(self._lengths)  # (B,)

    def keys(self) -> Tensor:
        """A view (B, Hkv, L, D); what lies beyond a row's length is junk."""
        return self._k[:, :, : len(self)]

    def values(self) -> Tensor:
        """A view (B, Hkv, L, Dv); what lies beyond a row's length is junk."""
        return self._v[:, :, : len(self)]

    def read(self) -> tuple[Tensor, Tensor, Tensor]:
        """Copies: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond a row's length; lengths (B,)."""
        # 9. read: by selection, since junk may be NaN
        held = torch.arange(len(self), device=self._lengths.device) < self._lengths[:, None]  # (B, L)
        held = held[:, None, :, None]  # (B, 1, L, 1)
        k = torch.where(held, self.keys(), 0)  # (B, Hkv, L, D)
        v = torch.where(held, self.values(), 0)  # (B, Hkv, L, Dv)
        return k, v, self.lengths
