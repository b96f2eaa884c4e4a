"""The contiguous KV cache whose heads hold slots of their own, so that a policy may keep others in every head.

Heads look at different tokens, and one choice for all of them keeps what no head needs most. A row of Hkv heads is Hkv
rows of one head each in a contiguous cache, which does all the work.

Letters: B batch, Hkv key/value heads, Hq query heads, G = Hq / Hkv, T new positions, Tq queries, L most slots that a
head holds, D and Dv head sizes.

Sources: Li et al., "SnapKV: LLM knows what you are looking for before generation", 2024, section 4 (a choice for each
head); Feng et al., "Ada-KV: optimizing KV cache eviction by adaptive budget allocation for efficient LLM inference",
2024, section 3 (budgets of heads).
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from .arrays import Array, Float64Array, IntArray
from .cache import Content, Entry, KeyValueCache, Stats
from .checks import Call, check_append, check_cache, check_cache_rope, check_reorder, check_tracking
from .evicting_cache import check_eviction
from .eviction import Policy, SnapKV
from .kv_cache import KVCache
from .masks import UNMASKED, Mask
from .rope import Rope
from .sdpa import Steps


class PerHeadCache(KeyValueCache):
    """Keys (B, Hkv, L, D) and values (B, Hkv, L, Dv) of the past. A call that raises leaves it as it was.

    All arguments are those of KVCache. Raises ShapeMismatch, InvalidConfig, DtypeMismatch.
    """

    kind = "per_head"

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
        check_cache("per_head_cache", self)
        check_cache_rope("per_head_cache", self)
        check_tracking("per_head_cache", track)
        self._cache = KVCache(
            *(batch * num_kv_heads, 1, head_dim, value_dim),
            capacity=capacity,
            rope=rope,
            rope_at=rope_at,
            track=track,
            dtype=dtype,
        )

    def _rows(self, x: NDArray[Any]) -> NDArray[Any]:
        """(B, Hkv, ...) or, of queries, (B, Hq, ...) as (B·Hkv, 1, ...) or (B·Hkv, G, ...)."""
        # 1. rows: a row for each KV head of a row; G = 1 for keys and values
        B, H, *rest = x.shape
        return x.reshape(B * self.num_kv_heads, H // self.num_kv_heads, *rest)

    def _of_heads(self, x: NDArray[Any]) -> NDArray[Any]:
        """(B·Hkv, ...), one entry for each head, as (B, Hkv, ...)."""
        return x.reshape(self.batch, self.num_kv_heads, *x.shape[1:])

    def _of_rows(self, x: NDArray[Any]) -> NDArray[Any]:
        """(B, Hkv, ...), one entry for each head, as (B·Hkv, ...)."""
        return x.reshape(self.batch * self.num_kv_heads, *x.shape[2:])

    @property
    def lengths(self) -> IntArray:
        """How many slots each head of each row holds: a copy, (B, Hkv)."""
        return self._of_heads(self._cache.lengths)

    def longest_after(self, counts: IntArray | int) -> int:
        """What L would be after an append of so many tokens in each row of one head."""
        return self._cache.longest_after(counts)

    def _prepare(self, name: str, k: Array, v: Array, lengths: IntArray | None, padding: str) -> Entry:
        check_append(name, k, v, lengths, self)
        of_rows = None if lengths is None else np.repeat(lengths, self.num_kv_heads)  # (B·Hkv,)
        return self._cache._prepare(name, self._rows(k), self._rows(v), of_rows, padding)

    def _commit(self, entry: Entry) -> None:
        self._cache._commit(entry)

    def _attend(self, q: Array, mask: Mask = UNMASKED, bias: Array | None = None, **options: Any) -> Steps:
        # 2. attend: in the contiguous cache, the queries of each group to the slots of their own head
        table = (*q.shape[:3], len(self))  # (B, Hq, Tq, L)
        if mask.keep is not None:
            mask = replace(mask, keep=self._rows(np.broadcast_to(mask.keep, table)))  # (B·Hkv, G, Tq, L)
        if isinstance(mask.q_offset, np.ndarray):
            mask = replace(mask, q_offset=np.repeat(mask.q_offset, self.num_kv_heads))  # (B·Hkv,)
        if bias is not None:
            bias = self._rows(np.broadcast_to(bias, table))  # (B·Hkv, G, Tq, L)
        steps = self._cache.attend_checked(self._rows(q), mask=mask, bias=bias, **options)
        return Steps(*(self._joined(x) for x in steps))

    def _joined(self, x: NDArray[Any]) -> NDArray[Any]:
        """(B·Hkv, G, ...) as (B, Hq, ...)."""
        # 3. join: the heads of a row side by side again
        _, G, *rest = x.shape
        return x.reshape(self.batch, self.num_kv_heads * G, *rest)

    def evict(self, positions: Sequence[int]) -> None:
        """Every head of every row forgets these positions, where it holds them. Raises InvalidConfig."""
        self._cache.evict(positions)

    def evict_by(self, policy: Policy) -> None:
        """Every head of every row keeps the slots that the policy chooses by its scores in that head. A budget may be a
        list, with one for each KV head.

        Raises InvalidConfig, ShapeMismatch, DtypeMismatch; as KVCache's.
        """
        check_eviction("evict_by", policy, self, self.track, self.num_kv_heads)
        if isinstance(policy, SnapKV):
            policy = replace(policy, q=self._rows(policy.q))  # (B·Hkv, G, W, D)
        budget = policy.budget
        of_heads = budget if isinstance(budget, Sequence) else [budget] * self.num_kv_heads
        self._cache.keep_chosen(policy, [*of_heads] * self.batch)

    def shift(self, by: int, start: int) -> None:
        """As KVCache's, in every head. Raises InvalidConfig."""
        self._cache.shift(by, start)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Raises InvalidConfig: the last slots of a row are not the same tokens in every head."""
        Call("truncate").config(False, "lengths", "no truncation where heads hold other slots", list(lengths))

    def reset(self) -> None:
        """Forget everything; the memory is kept."""
        self._cache.reset()

    def read(self) -> tuple[Array, Array, IntArray]:
        """Copies: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond what a head holds; lengths (B, Hkv)."""
        k, v, lengths = self._cache.read()
        return self._joined(k), self._joined(v), self._of_heads(lengths)

    def tracked(self) -> Float64Array:
        """A copy of the weights that each slot was given: (B, Hkv, L). Raises InvalidConfig without `track`."""
        return self._joined(self._cache.tracked())

    def slot_positions(self) -> IntArray:
        """The position of every slot: (B, Hkv, L), -1 beyond what a head holds."""
        return self._of_heads(self._cache.slot_positions())

    def reorder(self, index: Sequence[int]) -> None:
        """New row i is a copy of the old row index[i]; one a row. Raises ShapeMismatch, InvalidConfig."""
        check_reorder("reorder", index, self.batch)
        self._cache.reorder([b * self.num_kv_heads + h for b in index for h in range(self.num_kv_heads)])

    def fork(self) -> Self:
        """A second cache with the same content; neither sees what happens to the other."""
        other = copy(self)
        other._cache = self._cache.fork()
        return other

    def stats(self) -> Stats:
        """The slots of each head of each row, (B, Hkv), and the bytes of all."""
        return Stats(self.lengths, self._cache.stats().num_bytes)

    def describe(self) -> dict[str, str]:
        """What a file says of the cache beside kind, dtype and batch."""
        return self._cache.describe() | super().describe()

    def content(self) -> Content:
        """Copies of all that is held: lengths and next (B, Hkv), positions (B, Hkv, L)."""
        held = self._cache.content()
        rows = [self._of_heads(x) for x in (held.lengths, held.next, held.positions)]
        return Content(rows[0], rows[1], rows[2], {name: self._joined(x) for name, x in held.arrays.items()})

    def restore(self, content: Content) -> None:
        """Holds this and nothing else. Raises CapacityExceeded."""
        rows = [self._of_rows(x) for x in (content.lengths, content.next, content.positions)]
        arrays = {name: self._rows(x) for name, x in content.arrays.items()}
        self._cache.restore(Content(rows[0], rows[1], rows[2], arrays))
