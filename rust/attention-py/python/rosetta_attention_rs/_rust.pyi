"""The extension module. Private: the functions around it have the defaults and the documentation."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from .arrays import Array, BoolArray, IntArray
from .masks import Mask
from .mha import MultiHeadAttention

__all__ = [
    "KVCache",
    "__rustc__",
    "__version__",
    "mha",
    "sdpa",
    "sdpa_simd",
    "sdpa_steps",
    "simd_tiers",
    "softmax_lse",
    "visible",
]

__version__: str
__rustc__: str  # the compiler and its version

# mask, bias, scale, softcap, sinks
_Options = tuple[Mask, Array | None, float | None, float | None, Array | None]
# output, weights, lse, scores, capped, biased
_Steps = tuple[Array, Array, Array, Array, Array, Array]

def softmax_lse(x: Array, sink: Array | None) -> tuple[Array, Array]: ...
def visible(mask: Mask, batch: int, num_heads: int, q_len: int, kv_len: int) -> BoolArray: ...
def sdpa(q: Array, k: Array, v: Array, options: _Options) -> Array: ...
def sdpa_steps(q: Array, k: Array, v: Array, options: _Options) -> _Steps: ...
def sdpa_simd(q: Array, k: Array, v: Array, options: _Options, tier: str | None) -> tuple[Array, Array]: ...
def simd_tiers() -> list[str]: ...
def mha(
    layer: MultiHeadAttention, x: Array, context: Array | None, options: _Options
) -> tuple[Array, Array, Array]: ...

@final
class KVCache:
    def __new__(
        cls,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int,
        capacity: int | None,
        dtype: np.dtype[Any],
    ) -> KVCache: ...
    def append(self, k: Array, v: Array, lengths: IntArray | None) -> None: ...
    def attend(self, q: Array, options: _Options) -> Array: ...
    def attend_steps(self, q: Array, options: _Options) -> _Steps: ...
    def truncate(self, lengths: Sequence[int]) -> None: ...
    def reset(self) -> None: ...
    def read(self) -> tuple[Array, Array, IntArray]: ...
    def keys(self) -> Array: ...
    def values(self) -> Array: ...
    def lengths(self) -> IntArray: ...
