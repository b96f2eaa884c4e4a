"""The paged KV cache: rows are lists of pages from a common pool, taken one by one as the rows grow."""

from typing import Unpack

from .arrays import Array, IntArray
from .cache import AttendOptions, KeyValueCache, of_attend
from .merge import OutputLse
from .page_pool import PagePool
from .rope import Rope
from .sdpa import Steps


class PagedCache(KeyValueCache):
    """Keys and values in the pages of a pool, which go back to it when the cache is reset or gone.

    rope: turns keys and queries; None = neither. rope_at: as for KVCache.
    Raises ShapeMismatch, InvalidConfig.
    """

    kind = "paged"

    def __init__(
        self, pool: PagePool, batch: int, *, rope: Rope | None = None, rope_at: str | None = None
    ) -> None:
        self.pool, self.batch, self.rope, self.rope_at = pool, batch, rope, rope_at
        self.num_kv_heads, self.head_dim, self.value_dim = pool.num_kv_heads, pool.head_dim, pool.value_dim
        self.dtype = pool.dtype
        self._cache = pool._pool.cache(batch, (rope, rope_at))

    def append(
        self,
        k: Array,
        v: Array,
        lengths: IntArray | None = None,
        *,
        padding: str = "right",
        tokens: IntArray | None = None,
    ) -> None:
        """As KVCache's. tokens: int64 (B, T), from which k and v come; then full pages that hold the same after the
        same tokens become one.
        """
        self._cache.append(k, v, (lengths, padding, tokens))

    def append_attend(
        self,
        k: Array,
        v: Array,
        q: Array,
        lengths: IntArray | None = None,
        *,
        padding: str = "right",
        tokens: IntArray | None = None,
        **options: Unpack[AttendOptions],
    ) -> Steps:
        """`append`, then `attend_steps`; if either fails, nothing has changed."""
        return Steps(*self._cache.append_attend(k, v, (lengths, padding, tokens), q, of_attend(**options)))

    def append_attend_simd(
        self,
        k: Array,
        v: Array,
        q: Array,
        lengths: IntArray | None = None,
        *,
        padding: str = "right",
        tokens: IntArray | None = None,
        tier: str | None = None,
        **options: Unpack[AttendOptions],
    ) -> OutputLse:
        """`append`, then `attend_simd`; if either fails, nothing has changed."""
        append = (lengths, padding, tokens)
        return OutputLse(*self._cache.append_attend_simd(k, v, append, q, of_attend(**options), tier))
