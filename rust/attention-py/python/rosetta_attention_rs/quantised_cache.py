"""The quantised KV cache: keys and values in fewer bits, restored whenever they are attended to."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from . import _rust
from .cache import EvictingCache
from .quantise import Codes, typed_codes
from .rope import Rope

TYPES = {
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
}


class QuantisedCache(EvictingCache):
    """Codes of keys (B, Hkv, L, D) and values (B, Hkv, L, Dv) of the past; `read` restores them.

    format, group, zero_point: as for quantise, group by group of head_dim and of value_dim. capacity, value_dim, rope,
    rope_at, track: as for KVCache. dtype: of what comes and goes.
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
        rope_at: str | None = None,
        track: bool = False,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.batch, self.num_kv_heads, self.head_dim = batch, num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.format, self.group, self.zero_point = format, group, zero_point
        self.capacity, self.rope, self.rope_at, self.track = capacity, rope, rope_at, track
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._cache = self._empty((batch, num_kv_heads, head_dim, self.value_dim, self.dtype))

    def _empty(self, sizes: tuple[int, int, int, int, np.dtype[Any]]) -> _rust.Cache:
        form, turn = (self.format, self.group, self.zero_point), (self.rope, self.rope_at)
        return _rust.quantised_cache(sizes, form, self.capacity, turn, self.track)

    def codes(self) -> tuple[Codes, Codes]:
        """Copies of the codes of keys and of values, zero beyond a row's length."""
        k, v = self._cache.codes()
        return (
            typed_codes(k, self.format, self.group, self.head_dim),
            typed_codes(v, self.format, self.group, self.value_dim),
        )

    def code_arrays(self) -> dict[str, NDArray[Any]]:
        """The same by name, as a file has them: k_codes, k_scale, k_zero and those of v, where the format has them."""
        parts = [part for part in self._cache.columns() if part[0] != "tracked"]
        return {name: x.view(TYPES[dtype]).reshape(shape) for name, dtype, shape, x in parts}
