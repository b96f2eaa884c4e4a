"""The contiguous KV cache: keys and values of the past, one block of memory, per-row lengths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _rust
from .arrays import Array, IntArray
from .masks import UNMASKED, Mask
from .sdpa import Steps


class KVCache:
    """Keys (B, Hkv, length, D) and values (B, Hkv, length, Dv). A call that raises leaves the cache as it was.

    Threads may share a cache: calls that read run side by side, and one that changes it waits until it is alone.

    capacity: most positions a row may hold; None = grows by doubling. value_dim: None = head_dim.
    dtype: float16, bfloat16, float32 or float64; halves are kept as halves, and attended to in float32.
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
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.batch, self.num_kv_heads, self.head_dim = batch, num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.capacity = capacity
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._cache = _rust.KVCache(batch, num_kv_heads, head_dim, self.value_dim, capacity, self.dtype)

    def __len__(self) -> int:
        """L, the length of the longest row."""
        return int(self.lengths.max(initial=0))

    @property
    def lengths(self) -> IntArray:
        """How many positions each row holds: a copy, (B,)."""
        return self._cache.lengths()

    def append(self, k: Array, v: Array, lengths: IntArray | None = None) -> None:
        """Add `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv), T >= 0, after the last position of each row.

        lengths: (B,), how many of the T count in each row; None = all.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
        """
        self._cache.append(k, v, lengths)

    def attend(
        self,
        q: Array,
        *,
        mask: Mask = UNMASKED,
        bias: Array | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Array:
        """Attention of `q` (B, Hq, Tq, D) over the positions held: (B, Hq, Tq, Dv).

        mask, bias: over the L positions held. `mask.q_offset` None puts the last query on the last position of its row;
        `mask.kv_lengths` is the cache's own and must be None. scale, softcap: as for sdpa.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self._cache.attend(q, (mask, bias, scale, softcap, None, None))

    def attend_steps(
        self,
        q: Array,
        *,
        mask: Mask = UNMASKED,
        bias: Array | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Steps:
        """`attend` with all its intermediates; same arguments and errors."""
        return Steps(*self._cache.attend_steps(q, (mask, bias, scale, softcap, None, None)))

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] positions. Raises ShapeMismatch, InvalidConfig."""
        self._cache.truncate(lengths)

    def reset(self) -> None:
        """Forget everything; the memory is kept."""
        self._cache.reset()

    def keys(self) -> Array:
        """A copy (B, Hkv, L, D), since the memory moves when the cache grows; beyond a row's length it is junk."""
        return self._cache.keys()

    def values(self) -> Array:
        """A copy (B, Hkv, L, Dv), as `keys`."""
        return self._cache.values()

    def read(self) -> tuple[Array, Array, IntArray]:
        """Copies of keys (B, Hkv, L, D) and values (B, Hkv, L, Dv), zero beyond a row's length, and lengths (B,)."""
        return self._cache.read()
