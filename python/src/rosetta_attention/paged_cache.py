"""The paged KV cache: rows are lists of pages from a common pool, taken one by one as the rows grow.

Nothing is reserved for tokens that may never come, and rows or forks that begin alike hold the pages of their
beginning together. What `attend` gives is what a contiguous cache gives.

Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, S slots of a
page, D and Dv head sizes.

Sources: Kwon et al., "Efficient memory management for large language model serving with PagedAttention", 2023;
Zheng et al., "SGLang", 2024, section 3 (prefixes that requests share).
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self, Unpack

import numpy as np

from .arrays import Array, IntArray
from .cache import AttendOptions, Content, Entry, KeyValueCache, Stats, aligned, counted
from .checks import (
    check_cache_rope,
    check_pages,
    check_reorder,
    check_sizes,
    check_tokens,
    check_truncate,
)
from .masks import UNMASKED, Mask
from .page_pool import PagePool, Row
from .rope import Rope
from .sdpa import Steps


@dataclass(frozen=True)
class PagedEntry(Entry):
    """tokens: those that count in each row; None = unknown."""

    tokens: list[list[int]] | None = None


class PagedCache(KeyValueCache):
    """Keys and values in the pages of a pool. A call that raises leaves both as they were.

    A cache that is no longer needed is to be reset, so that its pages are free. rope: turns keys and queries; None =
    neither. rope_at: as for KVCache.
    Raises ShapeMismatch, InvalidConfig.
    """

    kind = "paged"

    def __init__(
        self, pool: PagePool, batch: int, *, rope: Rope | None = None, rope_at: str | None = None
    ) -> None:
        self.pool, self.batch, self.rope, self.rope_at = pool, batch, rope, rope_at
        self.num_kv_heads, self.head_dim, self.value_dim = pool.num_kv_heads, pool.head_dim, pool.value_dim
        self.dtype = pool.dtype
        check_sizes("paged_cache", self, batch=0)
        check_cache_rope("paged_cache", self)
        self._rows = [pool.new_row() for _ in range(batch)]

    @property
    def lengths(self) -> IntArray:
        """How many slots each row holds: a copy, (B,)."""
        return np.array([row.length for row in self._rows], np.int64)

    def slot_positions(self) -> IntArray:
        """The position of every slot: (B, L), -1 beyond a row's length."""
        j = np.arange(len(self))
        return np.where(j < self.lengths[:, None], j, -1)

    def append(
        self,
        k: Array,
        v: Array,
        lengths: IntArray | None = None,
        *,
        padding: str = "right",
        tokens: IntArray | None = None,
    ) -> None:
        """As KVCache's. tokens: int64 (B, T), from which k and v come; then full pages that hold the same after
        the same tokens become one.
        """
        self._commit(self._prepare("append", k, v, lengths, padding, tokens))

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
        entry = self._prepare("append_attend", k, v, lengths, padding, tokens)
        return self._append_attend(entry, q, options)

    def _prepare(
        self,
        name: str,
        k: Array,
        v: Array,
        lengths: IntArray | None,
        padding: str,
        tokens: IntArray | None = None,
    ) -> PagedEntry:
        # 1. check: everything, the free pages too, before anything is changed
        entry = self._entry(name, k, v, lengths, padding, self.lengths)
        known = None
        if tokens is not None:
            T = k.shape[2]
            check_tokens(name, tokens, self.batch, T)
            known = [tokens[b, s].tolist() for b, s in enumerate(counted(T, lengths, self.batch, padding)[1])]
        check_pages(name, self._pages_needed(entry.counts), self.pool.num_free)
        return PagedEntry(entry.rows, entry.counts, known)

    def _pages_needed(self, counts: IntArray) -> int:
        """New pages, and copies of last pages that are shared: all who write to one copy it, but the last owner."""
        S = self.pool.page_size
        growing = [(row, int(n)) for row, n in zip(self._rows, counts, strict=True) if n > 0]
        new = sum(_pages(row.length + n, S) - len(row.pages) for row, n in growing)
        writers = Counter(row.pages[-1] for row, _ in growing if row.length % S)
        return new + sum(min(n, int(self.pool.references[page]) - 1) for page, n in writers.items())

    def _commit(self, entry: Entry) -> None:
        pool, S = self.pool, self.pool.page_size
        for row, content, count in zip(self._rows, entry.rows, entry.counts.tolist(), strict=True):
            if count == 0:
                continue
            # 2. take pages: as many as come to be full or begun, and the last one for this row alone
            if row.length % S:
                row.pages[-1] = pool.writable(row.pages[-1])
            while len(row.pages) < _pages(row.length + count, S):
                row.pages.append(pool.take())

            # 3. write: position j into slot j mod S of page j div S
            j = row.length + np.arange(count)  # (count,)
            pages = np.array(row.pages)[j // S]  # (count,)
            pool.k[pages, :, j % S] = content["k"].swapaxes(0, 1)  # (count, Hkv, D)
            pool.v[pages, :, j % S] = content["v"].swapaxes(0, 1)  # (count, Hkv, Dv)
            row.length += count
        if isinstance(entry, PagedEntry) and entry.tokens is not None:
            self._share_prefixes(entry.tokens)

    def _share_prefixes(self, tokens: list[list[int]]) -> None:
        # 4. share prefixes: a full page gives way to an older one with the same bits after the same tokens
        for row, new in zip(self._rows, tokens, strict=True):
            if len(row.tokens) + len(new) == row.length:  # no gap
                row.tokens = row.tokens + new
        for row in self._rows:
            for index in range(len(row.tokens) // self.pool.page_size):
                twin = self.pool.twin(row, index)
                if twin is not None:
                    self.pool.share(twin)
                    self.pool.free(row.pages[index])
                    row.pages[index] = twin

    def _attend(self, q: Array, mask: Mask = UNMASKED, **options: Any) -> Steps:
        # 5. attend: to the slots of each row's pages, gathered
        k, v, lengths = self.read()
        mask = aligned(mask, q.shape[2], lengths, lengths, self.slot_positions())
        return self._attend_to(q, k, v, mask, **options)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] slots. Raises ShapeMismatch, InvalidConfig."""
        check_truncate("truncate", lengths, self.lengths.tolist())
        # 6. truncate: pages without a slot that is still held are free
        for row, length in zip(self._rows, lengths, strict=True):
            for page in row.pages[_pages(length, self.pool.page_size) :]:
                self.pool.free(page)
            row.pages = row.pages[: _pages(length, self.pool.page_size)]
            row.tokens = row.tokens[:length]
            row.length = int(length)

    def reset(self) -> None:
        """Forget everything; all pages are given back."""
        self.truncate([0] * self.batch)

    def read(self) -> tuple[Array, Array, IntArray]:
        """Copies: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond a row's length; lengths (B,)."""
        k, v = (self._gathered(pages) for pages in (self.pool.k, self.pool.v))
        return k, v, self.lengths

    def _gathered(self, pages: Array) -> Array:
        """(B, Hkv, L, n) of pages (num_pages, Hkv, S, n)."""
        _, Hkv, S, n = pages.shape
        out = np.zeros((self.batch, Hkv, len(self), n), self.dtype)
        for b, row in enumerate(self._rows):
            slots = pages[row.pages].swapaxes(0, 1).reshape(Hkv, len(row.pages) * S, n)
            out[b, :, : row.length] = slots[:, : row.length]
        return out

    def reorder(self, index: Sequence[int]) -> None:
        """New row i is the old row index[i], with the same pages; one a row. Raises ShapeMismatch, InvalidConfig."""
        check_reorder("reorder", index, self.batch)
        rows = [self._twin(self._rows[b]) for b in index]
        self.reset()
        self._rows = rows

    def fork(self) -> Self:
        """A second cache with the same pages; neither sees what happens to the other."""
        # 7. fork: whoever first writes to a page that both refer to gets a copy
        other = copy(self)
        other._rows = [self._twin(row) for row in self._rows]
        return other

    def _twin(self, row: Row) -> Row:
        twin = self.pool.new_row()
        twin.pages = [self.pool.share(page) for page in row.pages]
        twin.length, twin.tokens = row.length, list(row.tokens)
        return twin

    def stats(self) -> Stats:
        """The slots of each row, and bytes and pages of the whole pool."""
        return Stats(self.lengths, self.pool.num_bytes, self.pool.counts)

    def describe(self) -> dict[str, str]:
        """What a file says of the cache beside kind, dtype and batch."""
        pages = {"page_size": str(self.pool.page_size), "num_pages": str(self.pool.num_pages)}
        return super().describe() | pages

    def content(self) -> Content:
        """Copies of all that is held, without the pages."""
        k, v, lengths = self.read()
        return Content(lengths, lengths.copy(), self.slot_positions(), {"k": k, "v": v})

    def restore(self, content: Content) -> None:
        """Holds this and nothing else, in pages taken anew. Raises CapacityExceeded."""
        own = Counter(page for row in self._rows for page in row.pages)
        given_back = sum(n == self.pool.references[page] for page, n in own.items())
        needed = sum(_pages(n, self.pool.page_size) for n in content.lengths.tolist())
        check_pages("load", needed, self.pool.num_free + given_back)
        self.reset()
        rows = [
            {name: x[b, :, :n] for name, x in content.arrays.items()} for b, n in enumerate(content.lengths)
        ]
        self._commit(Entry(rows, content.lengths))


def _pages(length: int, page_size: int) -> int:
    """How many pages so many slots are in."""
    return -(-length // page_size)
