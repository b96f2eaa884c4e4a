"""The extension module. Private: the functions around it have the defaults and the documentation."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .arrays import Array, BoolArray, Float64Array, IntArray, WordArray
from .block import Block, Norm
from .dropout import Dropout
from .feed_forward import FeedForward
from .linear_attention import LinearState
from .masks import Mask
from .mha import MultiHeadAttention
from .mla import MultiHeadLatentAttention
from .quantise import CodeParts
from .rope import Rope
from .transformer import Transformer

__all__ = [
    "Cache",
    "PagePool",
    "__rustc__",
    "__version__",
    "alibi",
    "alibi_slopes",
    "block",
    "blocked",
    "cache_write",
    "cast",
    "cross_cache",
    "decode",
    "dropout",
    "feed_forward",
    "flash",
    "gated_linear",
    "gelu",
    "kivi_cache",
    "kv_cache",
    "latent_cache",
    "layer_norm",
    "linear_attention",
    "linear_chunked",
    "linear_recurrent",
    "merge",
    "mha",
    "mla",
    "norm",
    "pattern_keys",
    "philox_words",
    "quantise",
    "quantised_cache",
    "relative_bias",
    "restore",
    "rms_norm",
    "rope",
    "rotating_cache",
    "scoring",
    "sdpa",
    "sdpa_simd",
    "sdpa_steps",
    "sdpa_threads",
    "simd_tiers",
    "sinusoidal",
    "softmax_lse",
    "sparse",
    "sparse_mask",
    "split_kv",
    "structured",
    "swiglu",
    "transformer",
    "unpack",
    "varlen",
    "varlen_simd",
    "visible",
]

__version__: str
__rustc__: str  # the compiler and its version

# mask, bias, scale, softcap, sinks, dropout
_Options = tuple[Mask, Array | None, float | None, float | None, Array | None, Dropout | None]
# causal, q_offset, window, scale, softcap
_VarlenOptions = tuple[
    bool, int | IntArray | None, tuple[int | None, int | None] | None, float | None, float | None
]
# output, weights, lse, scores, capped, biased
_Steps = tuple[Array, Array, Array, Array, Array, Array]

def softmax_lse(x: Array, sink: Array | None) -> tuple[Array, Array]: ...
def visible(mask: Mask, batch: int, num_heads: int, q_len: int, kv_len: int) -> BoolArray: ...
def sdpa(q: Array, k: Array, v: Array, options: _Options) -> Array: ...
def sdpa_steps(q: Array, k: Array, v: Array, options: _Options) -> _Steps: ...
def sdpa_simd(q: Array, k: Array, v: Array, options: _Options, tier: str | None) -> tuple[Array, Array]: ...
def sdpa_threads(
    q: Array, k: Array, v: Array, options: _Options, tier: str | None, threads: int
) -> tuple[Array, Array]: ...
def simd_tiers() -> list[str]: ...
def blocked(q: Array, k: Array, v: Array, options: _Options) -> tuple[Array, Array]: ...
def flash(
    q: Array, k: Array, v: Array, options: _Options, block_q: int, block_k: int
) -> tuple[Array, Array]: ...
def split_kv(q: Array, k: Array, v: Array, options: _Options, splits: int) -> tuple[Array, Array]: ...
def merge(a_output: Array, a_lse: Array, b_output: Array, b_lse: Array) -> tuple[Array, Array]: ...
def varlen(
    q: Array, k: Array, v: Array, bounds: tuple[IntArray, IntArray], options: _VarlenOptions
) -> tuple[Array, Array]: ...
def varlen_simd(
    q: Array,
    k: Array,
    v: Array,
    bounds: tuple[IntArray, IntArray],
    options: _VarlenOptions,
    tier: str | None,
) -> tuple[Array, Array]: ...
def scoring(
    form: str,
    q: Array,
    k: Array,
    v: Array,
    weights: tuple[Array | None, Array | None, Array | None, Array | None],
    kv_lengths: IntArray | None,
) -> tuple[Array, Array, Array]: ...
def mha(
    layer: MultiHeadAttention,
    x: Array,
    context: Array | None,
    options: _Options,
    positions: IntArray | None,
    head_mask: BoolArray | None,
) -> tuple[Array, Array, Array, Array]: ...
def unpack(
    packed: Array, is_bias: bool, num_heads: int, num_kv_heads: int, packing: str
) -> tuple[Array, Array, Array]: ...
def sinusoidal(
    x: Array, positions: IntArray | None, offset: int, base: float, halves: bool
) -> tuple[Array, Array]: ...
def rope(
    x: Array, options: Rope, positions: IntArray | None, cos: Array | None, sin: Array | None
) -> tuple[Array, Array, Array]: ...
def alibi(scores: Array, q_offset: int) -> tuple[Array, Array, Array]: ...
def alibi_slopes(num_heads: int) -> Float64Array: ...
def relative_bias(
    scores: Array, table: Array, q_offset: int, bidirectional: bool, max_distance: int
) -> tuple[Array, IntArray]: ...
def cast(x: Array, to: str) -> Array: ...
def dropout(x: Array, options: Dropout, offset: int) -> tuple[Array, BoolArray]: ...
def philox_words(seed: int, first: int, count: int) -> WordArray: ...
def layer_norm(
    x: Array, weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]: ...
def rms_norm(x: Array, weight: Array | None, eps: float) -> Array: ...
def gelu(x: Array, approximate: str) -> Array: ...
def swiglu(a: Array, b: Array, alpha: float) -> Array: ...
def cache_write(cache: Array, update: Array, write_indices: IntArray | None, circular: bool) -> Array: ...
def linear_attention(
    q: Array, k: Array, v: Array, causal: bool, state: LinearState | None
) -> tuple[Array, Array, Array]: ...
def linear_recurrent(
    q: Array, k: Array, v: Array, causal: bool, state: LinearState | None
) -> tuple[Array, Array, Array]: ...
def linear_chunked(
    q: Array, k: Array, v: Array, causal: bool, state: LinearState | None, chunk: int
) -> tuple[Array, Array, Array]: ...
def gated_linear(
    q: Array,
    k: Array,
    v: Array,
    rule: str,
    arrays: tuple[Array | None, Array | None, Array | None],  # state, decay, beta
    scale: float | None,
) -> tuple[Array, Array]: ...
def sparse_mask(pattern: object, q_len: int, kv_len: int, causal: bool) -> BoolArray: ...
def pattern_keys(pattern: object, i: int, q_len: int, kv_len: int) -> IntArray: ...
def sparse(
    q: Array, k: Array, v: Array, pattern: object, scale: float | None, causal: bool
) -> tuple[Array, Array, IntArray]: ...
def structured(
    h: Array, w_1: Array, w_2: Array, kv_lengths: IntArray | None
) -> tuple[Array, Array, Array]: ...
def mla(
    layer: MultiHeadLatentAttention,
    x: Array,
    causal: bool,
    kv_lengths: IntArray | None,
    scale: float | None,
    absorbed: bool,
) -> tuple[Array, Array, Array, Array, Array]: ...
def norm(norm: Norm, x: Array) -> Array: ...
def feed_forward(layer: FeedForward, x: Array) -> Array: ...
def block(
    block: Block,
    x: Array,
    context: Array | None,
    causal: bool,
    kv_lengths: IntArray | None,
    context_lengths: IntArray | None,
) -> Array: ...
def transformer(
    model: Transformer, tokens: IntArray, segments: IntArray | None, causal: bool, kv_lengths: IntArray | None
) -> tuple[Array, Array]: ...

# batch, num_kv_heads, head_dim, value_dim, dtype
_Sizes = tuple[int, int, int, int, np.dtype[Any]]
_Format = tuple[str, int | None, bool]  # format, group, zero_point
_Policy = tuple[  # class, budget, sinks, recent, q, scale, pool
    str, int | Sequence[int], int, int, Array | None, float | None, int
]
_Turn = tuple[Rope | None, str | None]  # rope, rope_at
_Append = tuple[IntArray | None, str, IntArray | None]  # lengths, padding, tokens

def decode(layer: MultiHeadAttention, x: Array, cache: Cache, options: _Options) -> Array: ...
def quantise(x: Array, format: _Format) -> CodeParts: ...
def restore(
    codes: NDArray[np.uint8], scale: Array | None, zero: Array | None, format: _Format, channels: int
) -> Array: ...
def kv_cache(sizes: _Sizes, capacity: int | None, turn: _Turn, track: bool) -> Cache: ...
def per_head_cache(sizes: _Sizes, capacity: int | None, turn: _Turn, track: bool) -> Cache: ...
def rotating_cache(sizes: _Sizes, window: int, keep: int, turn: _Turn) -> Cache: ...
def quantised_cache(
    sizes: _Sizes, format: _Format, capacity: int | None, turn: _Turn, track: bool
) -> Cache: ...
def kivi_cache(
    sizes: _Sizes, format: _Format, key_groups: int, capacity: int | None, turn: _Turn, track: bool
) -> Cache: ...
def latent_cache(
    batch: int, latent_dim: int, rope_dim: int, capacity: int | None, dtype: np.dtype[Any]
) -> Cache: ...
def cross_cache(sizes: _Sizes) -> Cache: ...

@final
class PagePool:
    def __new__(
        cls,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int,
        dtype: np.dtype[Any],
    ) -> PagePool: ...
    def cache(self, batch: int, turn: _Turn) -> Cache: ...
    def counts(self) -> tuple[int, int, int]: ...

@final
class Cache:
    def append(self, k: Array, v: Array, options: _Append) -> None: ...
    def append_attend(
        self, k: Array, v: Array, options: _Append, q: Array, attend_options: _Options
    ) -> _Steps: ...
    def attend(self, q: Array, options: _Options) -> Array: ...
    def attend_steps(self, q: Array, options: _Options) -> _Steps: ...
    def attend_simd(self, q: Array, options: _Options, tier: str | None) -> tuple[Array, Array]: ...
    def append_attend_simd(
        self, k: Array, v: Array, options: _Append, q: Array, attend_options: _Options, tier: str | None
    ) -> tuple[Array, Array]: ...
    def check_simd(self, tier: str | None) -> None: ...
    def truncate(self, lengths: Sequence[int]) -> None: ...
    def reset(self) -> None: ...
    def read(self) -> tuple[Array, Array, IntArray, IntArray]: ...
    def reorder(self, index: Sequence[int]) -> None: ...
    def fork(self) -> Cache: ...
    def stats(self) -> tuple[IntArray, int, tuple[int, int, int] | None]: ...
    def evict(self, positions: Sequence[int]) -> None: ...
    def evict_by(self, policy: _Policy) -> None: ...
    def tracked(self) -> Float64Array: ...
    def columns(self) -> list[tuple[str, str, list[int], NDArray[np.uint8]]]: ...
    def shift(self, by: int, start: int) -> None: ...
    def codes(self) -> tuple[CodeParts, CodeParts]: ...
    def lengths(self) -> IntArray: ...
    def next(self) -> IntArray: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    def load(self, path: str | PathLike[str]) -> None: ...
