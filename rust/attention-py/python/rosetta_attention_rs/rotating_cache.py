"""The rotating KV cache: the last W positions and a few first ones, whatever the length of the text."""

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _rust
from .arrays import IntArray
from .cache import KeyValueCache
from .rope import Rope


class RotatingCache(KeyValueCache):
    """Keys and values of the last `window` positions and the first `keep`.

    A query at position p sees key j iff j <= p and (p - j < window or j < keep). `truncate` counts positions, and goes
    back only as far as the window of that length is still held; `read` gives what a next query could see.
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
        sizes = (batch, num_kv_heads, head_dim, self.value_dim, self.dtype)
        self._cache = _rust.rotating_cache(sizes, window, keep, (rope, rope_at))

    @property
    def row_lengths(self) -> IntArray:
        """How many positions each row has taken in, held or not: a copy, (B,)."""
        return self._cache.next()
