"""What all KV caches share: how rows take tokens in, how queries are aligned, attention over what is held.

A cache is a state machine. Every call checks everything first; a call that raises leaves the cache as it was.

Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L slots of the longest row,
D and Dv head sizes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from .arrays import Array, IntArray
from .cache_rope import rotated
from .cast import op
from .checks import check_append, check_attend_held, check_padding
from .masks import UNMASKED, Mask
from .rope import Rope, rope
from .sdpa import Steps, sdpa_steps


class Stats(NamedTuple):
    """How much a cache holds."""

    positions: IntArray  # (B,), slots held by each row
    num_bytes: int  # of keys and values, or of codes, scales and zeros; of a paged cache: of all used pages
    pages: tuple[int, int, int] | None = None  # used, shared by more than one row or fork, free


class AttendOptions(TypedDict, total=False):
    """Options of `attend`.

    mask: over the slots held; causal and window speak of positions. A `q_offset` of None puts the last query on
        the last position of its row; `kv_lengths` and `kv_positions` are the cache's own and must be None.
    bias: over the slots held, broadcastable to (B, Hq, Tq, L). scale, softcap: as for sdpa.
    """

    mask: Mask
    bias: Array | None
    scale: float | None
    softcap: float | None


@dataclass(frozen=True)
class Entry:
    """Tokens that have passed all checks. rows: for each row the content of its new slots, (H, count, n)."""

    rows: Sequence[Mapping[str, NDArray[Any]]]
    counts: IntArray  # (B,)


@dataclass(frozen=True)
class Content:
    """All that a cache holds, as a file has it: zero, and at position -1, beyond a row's length."""

    lengths: IntArray  # (B,)
    next: IntArray  # (B,), the position of each row's next token
    positions: IntArray  # (B, L)
    arrays: Mapping[str, NDArray[Any]]  # (B, ..., L, n), of weights that were given (B, Hkv, L)


class Cache(ABC):
    """Any cache. What a token is, and so what `append` takes, is the matter of its kind."""

    kind: ClassVar[str]
    slot_axis: ClassVar[int] = 2  # where the arrays of a content have their slots
    batch: int
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        """L, the number of slots that the longest row holds."""
        return int(self.lengths.max(initial=0))

    @property
    @abstractmethod
    def lengths(self) -> IntArray:
        """How many slots each row holds: a copy, (B,)."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Key/value heads, and the sizes of the keys and values that queries meet."""

    def attend(self, q: Array, **options: Unpack[AttendOptions]) -> Array:
        """Attention of `q` (B, Hq, Tq, D) over the slots held: (B, Hq, Tq, Dv).

        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.attend_steps(q, **options).output

    def attend_steps(self, q: Array, **options: Unpack[AttendOptions]) -> Steps:
        """`attend` with all its intermediates; same arguments and errors."""
        self.check_attend("attend", q, len(self), **options)
        return self.attend_checked(q, **options)

    def check_attend(self, name: str, q: Any, length: int, **options: Unpack[AttendOptions]) -> None:
        """That queries and options fit slots of this length."""
        check_attend_held(name, q, self, length, **(AttendOptions(mask=UNMASKED) | options))

    @op
    def attend_checked(self, q: Array, **options: Any) -> Steps:
        """`attend_steps` of what is checked already."""
        steps = self._attend(q, **options)
        self._track(steps.weights)
        return steps

    def _track(self, weights: Array) -> None:  # noqa: B027  (most caches have no use for it)
        """What an attend leaves behind, of the weights (B, Hq, Tq, L) as they were computed."""

    @abstractmethod
    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] slots. Raises ShapeMismatch, InvalidConfig."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything; the memory is kept."""

    @abstractmethod
    def read(self) -> tuple[Array, Array, IntArray]:
        """Copies of the two contents of a slot, zero beyond a row's length, and the lengths (B,)."""

    @abstractmethod
    def slot_positions(self) -> IntArray:
        """The position of every slot that `read` gives: (B, L), -1 beyond a row's length."""

    @abstractmethod
    def reorder(self, index: Sequence[int]) -> None:
        """New row i is a copy of the old row index[i]; one a row. Raises ShapeMismatch, InvalidConfig."""

    @abstractmethod
    def fork(self) -> Self:
        """A second cache with the same content; neither sees what happens to the other."""

    @abstractmethod
    def stats(self) -> Stats:
        """How much is held."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """What a file says of the cache beside kind, dtype and batch."""

    @abstractmethod
    def content(self) -> Content:
        """Copies of all that is held."""

    @abstractmethod
    def restore(self, content: Content) -> None:
        """Holds this and nothing else. Raises CapacityExceeded."""

    def entries(self, name: str, lengths: IntArray, longest: int) -> int:
        """How long an array of a content is along `slot_axis`, for rows of these lengths, the longest of which may be
        followed by some more.
        """
        return longest

    @abstractmethod
    def _attend(self, q: Array, **options: Any) -> Steps:
        """Attention of queries that are float32 or float64, as is all arithmetic within."""

    @abstractmethod
    def _commit(self, entry: Entry) -> None:
        """The change that an append makes; nothing can go wrong any more."""

    def longest_after(self, counts: IntArray | int) -> int:
        """What L would be after an append of so many tokens in each row."""
        return int((self.lengths + counts).max(initial=0))

    def _append_attend(self, entry: Entry, q: Array, options: AttendOptions) -> Steps:
        """Both or, where the second would fail, neither."""
        self.check_attend("append_attend", q, self.longest_after(entry.counts), **options)
        self._commit(entry)
        return self.attend_checked(q, **options)


class KeyValueCache(Cache):
    """A cache whose tokens are keys and values.

    rope: turns keys and queries; None = neither. rope_at: "append", the default, turns a key once, as it comes;
    "attend" holds it as it came and turns it whenever it is attended to.
    """

    num_kv_heads: int
    head_dim: int
    value_dim: int
    rope: Rope | None = None
    rope_at: str | None = None

    @property
    def held_rope(self) -> Rope | None:
        """The rotation that held keys have been through."""
        return None if self.rope_at == "attend" else self.rope

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Key/value heads, and the sizes of the keys and values that queries meet."""
        return self.num_kv_heads, self.head_dim, self.value_dim

    def append(self, k: Array, v: Array, lengths: IntArray | None = None, *, padding: str = "right") -> None:
        """Add `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv), T >= 0, after the last position of each row.

        lengths: int64 (B,), how many of the T count in each row; None = all. padding: "right", the first ones
            count; "left", the last ones.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
        """
        self._commit(self._prepare("append", k, v, lengths, padding))

    def append_attend(
        self,
        k: Array,
        v: Array,
        q: Array,
        lengths: IntArray | None = None,
        *,
        padding: str = "right",
        **options: Unpack[AttendOptions],
    ) -> Steps:
        """`append`, then `attend_steps`; if either fails, nothing has changed."""
        return self._append_attend(self._prepare("append_attend", k, v, lengths, padding), q, options)

    @abstractmethod
    def _prepare(self, name: str, k: Array, v: Array, lengths: IntArray | None, padding: str) -> Entry:
        """Everything that can go wrong with new tokens, before anything is changed."""

    def _entry(
        self, name: str, k: Array, v: Array, lengths: IntArray | None, padding: str, following: IntArray
    ) -> Entry:
        """The tokens that count, their keys turned by the positions from `following` (B,) on."""
        check_append(name, k, v, lengths, self)
        check_padding(name, padding)
        counts, which = counted(k.shape[2], lengths, self.batch, padding)
        rows = []
        for b, tokens in enumerate(which):
            keys = self._before_turning(k[b : b + 1, :, tokens])  # (1, Hkv, count, D)
            keys = rotated(keys, self.held_rope, following[b : b + 1])
            rows.append({"k": keys[0], "v": v[b, :, tokens]})  # (Hkv, count, D), (Hkv, count, Dv)
        return Entry(rows, counts)

    def _before_turning(self, k: Array) -> Array:
        """Keys in the type that they are turned in."""
        return k

    def _attend_to(self, q: Array, k: Array, v: Array, mask: Mask, **options: Any) -> Steps:
        """Attention over slots. The queries turn now, and keys that are held as they came. The mask is aligned."""
        q = rotated(q, self.rope, np.asarray(mask.q_offset))  # (B, Hq, Tq, D)
        k, v = (x.astype(q.dtype, copy=False) for x in (k, v))
        if self.rope is not None and self.held_rope is None:
            k = rope(k, self.rope, positions=mask.kv_positions)  # (B, Hkv, L, D)
        return sdpa_steps(q, k, v, mask=mask, **options)

    def describe(self) -> dict[str, str]:
        """What a file says of the cache beside kind, dtype and batch."""
        sizes = {name: str(getattr(self, name)) for name in ("num_kv_heads", "head_dim", "value_dim")}
        return sizes | {"rope": "false" if self.held_rope is None else "true"}


def counted(T: int, lengths: IntArray | None, batch: int, padding: str) -> tuple[IntArray, list[slice]]:
    """How many of T tokens count in each row, and which: the first ones or, padded left, the last ones."""
    counts = np.full(batch, T, np.int64) if lengths is None else lengths  # (B,)
    starts = [0 if padding == "right" else T - int(n) for n in counts]
    return counts, [slice(start, start + int(n)) for start, n in zip(starts, counts, strict=True)]


def aligned(mask: Mask, q_len: int, lengths: IntArray, following: IntArray, positions: IntArray) -> Mask:
    """The mask over rows of slots at `positions` (B, L). The last query stands on the last position of its row,
    the one before `following` (B,), unless the mask says where the first one stands.
    """
    offset = following - q_len if mask.q_offset is None else mask.q_offset
    q_offset = np.broadcast_to(np.asarray(offset, np.int64), lengths.shape)  # (B,)
    return replace(mask, kv_lengths=lengths, q_offset=q_offset, kv_positions=positions)
