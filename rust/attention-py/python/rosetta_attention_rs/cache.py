"""What all KV caches share: how rows take tokens in, attention over what is held, and what can be done with it."""

from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, NamedTuple, Self, TypedDict, Unpack

import numpy as np

from . import _rust
from .arrays import Array, Float64Array, IntArray
from .eviction import Policy, policy_parts
from .masks import UNMASKED, Mask
from .merge import OutputLse
from .rope import Rope
from .sdpa import Steps


class Stats(NamedTuple):
    """How much a cache holds."""

    positions: IntArray  # (B,), slots held by each row
    num_bytes: int  # of keys and values, or of codes, scales and zeros; of a paged cache: of all used pages
    pages: tuple[int, int, int] | None = None  # used, shared by more than one row or fork, free


class AttendOptions(TypedDict, total=False):
    """Options of `attend`.

    mask: over the slots held; causal and window speak of positions. A `q_offset` of None puts the last query on the
        last position of its row; `kv_lengths` is the cache's own and must be None.
    bias: over the slots held, broadcastable to (B, Hq, Tq, L). scale, softcap: as for sdpa.
    """

    mask: Mask
    bias: Array | None
    scale: float | None
    softcap: float | None


class Cache:
    """Any cache. A call that raises leaves it as it was.

    Threads may share a cache: calls that read run side by side, and one that changes it waits until it is alone.
    """

    kind: ClassVar[str]
    batch: int
    dtype: np.dtype[Any]
    _cache: _rust.Cache

    def __len__(self) -> int:
        """L, the number of slots that the longest row holds."""
        return int(self.lengths.max(initial=0))

    @property
    def lengths(self) -> IntArray:
        """How many slots each row holds: a copy, (B,)."""
        return self._cache.lengths()

    def attend(self, q: Array, **options: Unpack[AttendOptions]) -> Array:
        """Attention of `q` (B, Hq, Tq, D) over the slots held: (B, Hq, Tq, Dv).

        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self._cache.attend(q, of_attend(**options))

    def attend_steps(self, q: Array, **options: Unpack[AttendOptions]) -> Steps:
        """`attend` with all its intermediates; same arguments and errors."""
        return Steps(*self._cache.attend_steps(q, of_attend(**options)))

    def attend_simd(
        self, q: Array, *, tier: str | None = None, **options: Unpack[AttendOptions]
    ) -> OutputLse:
        """`attend` with vector instructions on what is held, where it lies, and its log-sum-exp.

        tier: as for sdpa_simd. Raises as `attend`, and what `check_simd` does.
        """
        return OutputLse(*self._cache.attend_simd(q, of_attend(**options), tier))

    def check_simd(self, tier: str | None = None) -> None:
        """Raises Unsupported where `attend_simd` does not do such a cache, or this machine no such tier."""
        self._cache.check_simd(tier)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] slots. Raises ShapeMismatch, InvalidConfig."""
        self._cache.truncate(lengths)

    def reset(self) -> None:
        """Forget everything."""
        self._cache.reset()

    def read(self) -> tuple[Array, Array, IntArray]:
        """Copies of the two contents of a slot, zero beyond a row's length, and the lengths (B,)."""
        first, second, lengths, _ = self._cache.read()
        return first, second, lengths

    def slot_positions(self) -> IntArray:
        """The position of every slot that `read` gives: (B, L), -1 beyond a row's length."""
        return self._cache.read()[3]

    def reorder(self, index: Sequence[int]) -> None:
        """New row i is a copy of the old row index[i]; one a row. Raises ShapeMismatch, InvalidConfig."""
        self._cache.reorder(index)

    def fork(self) -> Self:
        """A second cache with the same content; neither sees what happens to the other."""
        other = copy(self)
        other._cache = self._cache.fork()
        return other

    def stats(self) -> Stats:
        """How much is held."""
        return Stats(*self._cache.stats())


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

    def append(self, k: Array, v: Array, lengths: IntArray | None = None, *, padding: str = "right") -> None:
        """Add `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv), T >= 0, after the last position of each row.

        lengths: int64 (B,), how many of the T count in each row; None = all. padding: "right", the first ones count;
            "left", the last ones.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
        """
        self._cache.append(k, v, (lengths, padding, None))

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
        return Steps(*self._cache.append_attend(k, v, (lengths, padding, None), q, of_attend(**options)))

    def append_attend_simd(
        self,
        k: Array,
        v: Array,
        q: Array,
        lengths: IntArray | None = None,
        *,
        padding: str = "right",
        tier: str | None = None,
        **options: Unpack[AttendOptions],
    ) -> OutputLse:
        """`append`, then `attend_simd`; if either fails, nothing has changed."""
        append = (lengths, padding, None)
        return OutputLse(*self._cache.append_attend_simd(k, v, append, q, of_attend(**options), tier))


class EvictingCache(KeyValueCache):
    """A cache whose slots can be forgotten one by one, and whose positions can move to close the gap.

    track: whether the weights that each slot is given are added up.
    """

    track: bool = False

    def evict(self, positions: Sequence[int]) -> None:
        """Every row forgets these positions, where it holds them; the others keep theirs.

        The next token stands where it would have stood. Raises InvalidConfig.
        """
        self._cache.evict(positions)

    def evict_by(self, policy: Policy) -> None:
        """Every row keeps the slots that the policy chooses, and forgets the others as `evict` does.

        A row that holds no more than the budget keeps all. The choice is one for all heads.
        Raises InvalidConfig, also for HeavyHitters in a cache that does not track; ShapeMismatch and DtypeMismatch for
        the queries of SnapKV.
        """
        self._cache.evict_by(policy_parts(policy))

    def tracked(self) -> Float64Array:
        """A copy of the weights that each slot was given since it was appended, by all queries of all query heads that
        read its KV head: (B, Hkv, L), zero beyond a row's length. Raises InvalidConfig without `track`.
        """
        return self._cache.tracked()

    def shift(self, by: int, start: int) -> None:
        """Every position from `start` on moves by `by`, and its key turns with it; so does the position of the next
        token, if it is beyond `start`.

        Raises InvalidConfig where a position would fall below 0, or come to or pass one that stays.
        """
        self._cache.shift(by, start)


def of_attend(
    mask: Mask = UNMASKED,
    bias: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Mask, Array | None, float | None, float | None, None, None]:
    """The options as the extension module takes them."""
    return mask, bias, scale, softcap, None, None
