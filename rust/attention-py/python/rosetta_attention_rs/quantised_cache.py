"""The quantised KV cache: keys and values in fewer bits, restored whenever they are attended to."""

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _rust
from .cache import EvictingCache
from .quantise import Codes, typed_codes
from .rope import Rope


class QuantisedCache(EvictingCache):
    """Codes of keys (B, Hkv, L, D) and values (B, Hkv, L, Dv) of the past; `read` restores them.

    format, group, zero_point: as for quantise, group by group of head_dim and of value_dim. capacity, value_dim, rope:
    as for KVCache. dtype: of what comes and goes.
    Raises ShapeMismatch, InvalidConfig, DtypeMismatch.
    """

    kind = "quantised"

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        format: str,
        group: int | None = None,
        zero_point: bool = False,
        capacity: int | None = None,
        rope: Rope | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.batch, self.num_kv_heads, self.head_dim = batch, num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.format, self.group, self.zero_point = format, group, zero_point
        self.capacity, self.rope = capacity, rope
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        sizes = (batch, num_kv_heads, head_dim, self.value_dim, self.dtype)
        self._cache = _rust.quantised_cache(sizes, (format, group, zero_point), capacity, rope)

    def codes(self) -> tuple[Codes, Codes]:
        """Copies of the codes of keys and of values, zero beyond a row's length."""
        k, v = self._cache.codes()
        return (
            typed_codes(k, self.format, self.group, self.head_dim),
            typed_codes(v, self.format, self.group, self.value_dim),
        )
