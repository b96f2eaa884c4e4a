"""The contiguous KV cache whose heads hold slots of their own, so that a policy may keep others in every head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _rust
from .arrays import Array, Float64Array, IntArray
from .cache import EvictingCache, Stats
from .eviction import Policy
from .rope import Rope


class PerHeadCache(EvictingCache):
    """Keys (B, Hkv, L, D) and values (B, Hkv, L, Dv), each head with a length of its own.

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
        sizes = (batch, num_kv_heads, head_dim, self.value_dim, self.dtype)
        self._cache = _rust.per_head_cache(sizes, capacity, (rope, rope_at), track)

    def _of_heads(self, x: IntArray) -> IntArray:
        """(B·Hkv, ...) as (B, Hkv, ...)."""
        return x.reshape(self.batch, self.num_kv_heads, *x.shape[1:])

    @property
    def lengths(self) -> IntArray:
        """How many slots each head of each row holds: a copy, (B, Hkv)."""
        return self._of_heads(self._cache.lengths())

    def evict(self, positions: Sequence[int]) -> None:
        """Every head of every row forgets these positions, where it holds them. Raises InvalidConfig."""
        super().evict(positions)

    def evict_by(self, policy: Policy) -> None:
        """Every head of every row keeps the slots that the policy chooses by its scores in that head. A budget may be a
        list, with one for each KV head.

        Raises InvalidConfig, ShapeMismatch, DtypeMismatch; as KVCache's.
        """
        super().evict_by(policy)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Raises InvalidConfig: the last slots of a row are not the same tokens in every head."""
        super().truncate(lengths)

    def read(self) -> tuple[Array, Array, IntArray]:
        """Copies: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond what a head holds; lengths (B, Hkv)."""
        k, v, lengths = super().read()
        return k, v, self._of_heads(lengths)

    def tracked(self) -> Float64Array:
        """A copy of the weights that each slot was given: (B, Hkv, L). Raises InvalidConfig without `track`."""
        return super().tracked()

    def slot_positions(self) -> IntArray:
        """The position of every slot: (B, Hkv, L), -1 beyond what a head holds."""
        return self._of_heads(super().slot_positions())

    def stats(self) -> Stats:
        """The slots of each head of each row, (B, Hkv), and the bytes of all."""
        of_rows = super().stats()
        return of_rows._replace(positions=self._of_heads(of_rows.positions))
