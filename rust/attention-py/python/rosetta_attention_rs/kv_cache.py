"""The contiguous KV cache: keys and values of the past, one block of memory, per-row lengths."""

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _rust
from .arrays import Array
from .cache import EvictingCache
from .rope import Rope


class KVCache(EvictingCache):
    """Keys (B, Hkv, length, D) and values (B, Hkv, length, Dv).

    capacity: most positions a row may hold; None = grows by doubling. value_dim: None = head_dim.
    rope: turns keys and queries; None = they come turned, or need not be. rope_at: "append" (None), where a key is
    turned as it comes, or "attend", where keys are held as they came and turned whenever they are attended to.
    track: every attend adds to each slot the weights that it gives it.
    dtype: float16, bfloat16, float32 or float64; halves are kept as halves, and attended to in float32.
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
        sizes = (batch, num_kv_heads, head_dim, self.value_dim, self.dtype)
        self._cache = _rust.kv_cache(sizes, capacity, (rope, rope_at), track)

    def keys(self) -> Array:
        """A copy (B, Hkv, L, D), since the memory moves when the cache grows; zero beyond a row's length."""
        return self.read()[0]

    def values(self) -> Array:
        """A copy (B, Hkv, L, Dv), as `keys`."""
        return self.read()[1]
