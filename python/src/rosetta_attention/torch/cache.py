"""What the KV caches share: how tokens come in, how queries are aligned, attention over what is held.

A cache is a state machine. Every call checks everything first; a call that raises leaves the cache as it was. How long
its rows are a cache must know before it can shape anything: that stays with the host, as page tables do; keys and
values are tensors on the device.

Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, N those of all rows that count, Tq queries, L
slots of the longest row, D and Dv head sizes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, TypedDict, Unpack

import torch
from torch import Tensor

from ..checks import check_append, check_attend_held, check_padding
from .cast import op
from .masks import UNMASKED, Mask
from .rope import Rope, rope
from .sdpa import Steps, sdpa_steps


class Stats(NamedTuple):
    """How much a cache holds."""

    positions: Tensor  # (B,), slots held by each row
    num_bytes: int  # of keys and values; of a paged cache: of all used pages
    pages: tuple[int, int, int] | None = None  # used, shared by more than one row or fork, free


class AttendOptions(TypedDict, total=False):
    """Options of `attend`.

    mask: over the slots held. A `q_offset` of None puts the last query on the last position of its row;
        `kv_lengths` is the cache's own and must be None.
    bias: over the slots held, broadcastable to (B, Hq, Tq, L). scale, softcap: as for sdpa.
    """

    mask: Mask
    bias: Tensor | None
    scale: float | None
    softcap: float | None


@dataclass(frozen=True)
class Entry:
    """Tokens that have passed all checks: those that count of all rows, row after row.

    row, position: where each belongs. tokens: what they are, row by row; None = unknown.
    """

    counts: list[int]  # (B,)
    row: Tensor  # (N,)
    position: Tensor  # (N,)
    k: Tensor  # (N, Hkv, D)
    v: Tensor  # (N, Hkv, Dv)
    tokens: list[list[int]] | None = None


class KeyValueCache(ABC):
    """Any cache of keys and values.

    rope: turns keys and queries; None = neither. rope_at: "append", the default, turns a key once, as it comes;
    "attend" holds it as it came and turns it whenever it is attended to.
    """

    batch: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    rope: Rope | None
    rope_at: str | None
    device: torch.device

    @property
    @abstractmethod
    def _lengths(self) -> list[int]:
        """How many positions each row holds."""

    def __len__(self) -> int:
        """L, the length of the longest row."""
        return max(self._lengths, default=0)

    @property
    def lengths(self) -> Tensor:
        """How many positions each row holds: a copy, (B,)."""
        return torch.tensor(self._lengths, dtype=torch.int64, device=self.device)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Key/value heads, and the sizes of their keys and values."""
        return self.num_kv_heads, self.head_dim, self.value_dim

    @property
    def held_rope(self) -> Rope | None:
        """The rotation that held keys have been through."""
        return None if self.rope_at == "attend" else self.rope

    def slot_positions(self) -> Tensor:
        """The position of every slot: (B, L), -1 beyond a row's length."""
        j = torch.arange(len(self), device=self.device)  # (L,)
        return torch.where(self._held(), j, -1)

    def append(self, k: Tensor, v: Tensor, lengths: Tensor | None = None, *, padding: str = "right") -> None:
        """Add `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv), T >= 0, after the last position of each row.

        lengths: int64 (B,), how many of the T count in each row; None = all. padding: "right", the first ones
            count; "left", the last ones.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
        """
        self._commit(self._prepare("append", k, v, lengths, padding))

    def append_attend(
        self,
        k: Tensor,
        v: Tensor,
        q: Tensor,
        lengths: Tensor | None = None,
        *,
        padding: str = "right",
        **options: Unpack[AttendOptions],
    ) -> Steps:
        """`append`, then `attend_steps`; if either fails, nothing has changed."""
        return self._append_attend(self._prepare("append_attend", k, v, lengths, padding), q, options)

    def attend(self, q: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
        """Attention of `q` (B, Hq, Tq, D) over the slots held: (B, Hq, Tq, Dv).

        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.attend_steps(q, **options).output

    def attend_steps(self, q: Tensor, **options: Unpack[AttendOptions]) -> Steps:
        """`attend` with all its intermediates; same arguments and errors."""
        self.check_attend("attend", q, len(self), **options)
        return self.attend_checked(q, **options)

    def check_attend(self, name: str, q: Any, length: int, **options: Unpack[AttendOptions]) -> None:
        """That queries and options fit slots of this length."""
        check_attend_held(name, q, self, length, **(AttendOptions(mask=UNMASKED) | options))

    @op
    def attend_checked(self, q: Tensor, **options: Any) -> Steps:
        """`attend_steps` of what is checked already."""
        return self._attend(q, **options)

    @abstractmethod
    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] slots. Raises ShapeMismatch, InvalidConfig."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything."""

    @abstractmethod
    def read(self) -> tuple[Tensor, Tensor, Tensor]:
        """Copies: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond a row's length; lengths (B,)."""

    @abstractmethod
    def reorder(self, index: Sequence[int]) -> None:
        """New row i is a copy of the old row index[i]; one a row. Raises ShapeMismatch, InvalidConfig."""

    @abstractmethod
    def fork(self) -> Self:
        """A second cache with the same content; neither sees what happens to the other."""

    @abstractmethod
    def stats(self) -> Stats:
        """How much is held."""

    def longest_after(self, counts: Sequence[int] | int) -> int:
        """What L would be after an append of so many tokens in each row."""
        new = [counts] * self.batch if isinstance(counts, int) else counts
        return max((n + more for n, more in zip(self._lengths, new, strict=True)), default=0)

    @abstractmethod
    def _prepare(self, name: str, k: Tensor, v: Tensor, lengths: Tensor | None, padding: str) -> Entry:
        """Everything that can go wrong with new tokens, before anything is changed."""

    @abstractmethod
    def _commit(self, entry: Entry) -> None:
        """The change that an append makes; nothing can go wrong any more."""

    @abstractmethod
    def _attend(self, q: Tensor, mask: Mask = UNMASKED, **options: Any) -> Steps:
        """Attention of queries that are float32 or float64, as is all arithmetic within."""

    def _append_attend(self, entry: Entry, q: Tensor, options: AttendOptions) -> Steps:
        """Both or, where the second would fail, neither."""
        self.check_attend("append_attend", q, self.longest_after(entry.counts), **options)
        self._commit(entry)
        return self.attend_checked(q, **options)

    def _entry(self, name: str, k: Tensor, v: Tensor, lengths: Tensor | None, padding: str) -> Entry:
        """The tokens that count, their keys turned by the positions that they take."""
        check_append(name, k, v, lengths, self)
        check_padding(name, padding)
        T, held = k.shape[2], self.lengths  # (B,)
        counts = torch.full_like(held, T) if lengths is None else lengths.to(self.device)  # (B,)
        first = T - counts if padding == "left" else torch.zeros_like(counts)  # (B,)
        # Which of its row's tokens each one is.
        n = torch.arange(T, device=self.device) - first[:, None]  # (B, T)
        row, t = torch.nonzero((n >= 0) & (n < counts[:, None]), as_tuple=True)  # (N,)
        position = held[:, None] + n  # (B, T)
        if self.held_rope is not None:
            k = rope(k, self.held_rope, positions=position)  # (B, Hkv, T, D)
        return Entry(counts.tolist(), row, position[row, t], k[row, :, t], v[row, :, t])

    def _aligned(self, mask: Mask, q_len: int) -> Mask:
        """The mask over what is held. The last query stands on the last position of its row, unless the mask says
        where the first one stands.
        """
        lengths = self.lengths  # (B,)
        offset = lengths - q_len if mask.q_offset is None else mask.q_offset
        offset = torch.as_tensor(offset, device=self.device)
        return replace(mask, kv_lengths=lengths, q_offset=offset.expand(self.batch))

    def _attend_to(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **options: Any) -> Steps:
        """Attention over slots. The queries turn now, and keys that are held as they came. The mask is aligned."""
        k, v = k.to(q.dtype), v.to(q.dtype)
        if self.rope is not None:
            first = torch.as_tensor(mask.q_offset, device=q.device)  # (B,)
            p = first[:, None] + torch.arange(q.shape[2], device=q.device)  # (B, Tq)
            q = rope(q, self.rope, positions=p)  # (B, Hq, Tq, D)
            if self.held_rope is None:
                k = rope(k, self.rope, positions=self.slot_positions())  # (B, Hkv, L, D)
        return sdpa_steps(q, k, v, mask=mask, **options)

    def _held(self) -> Tensor:
        """Which slots exist: (B, L)."""
        return torch.arange(len(self), device=self.device) < self.lengths[:, None]

    def _only_held(self, x: Tensor) -> Tensor:
        """A copy of (B, Hkv, L, n), zero beyond a row's length; by selection, since junk may be NaN."""
        return torch.where(self._held()[:, None, :, None], x, 0)
