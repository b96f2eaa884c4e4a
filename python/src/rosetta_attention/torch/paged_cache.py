"""The paged KV cache: rows are lists of pages from a common pool, taken one by one as the rows grow.

Nothing is reserved for tokens that may never come, and rows or forks that begin alike hold the pages of their
beginning together. What `attend` gives is what a contiguous cache gives. All rows are written, and gathered, by one
index each: the table of their pages.

Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, N those of all rows that count, Tq queries, L
longest row, S slots of a page, P most pages of a row, D and Dv head sizes.

Sources: Kwon et al., "Efficient memory management for large language model serving with PagedAttention", 2023;
Zheng et al., "SGLang", 2024, section 3 (prefixes that requests share).
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self, Unpack

import torch
from torch import Tensor

from ..checks import check_cache_rope, check_pages, check_reorder, check_sizes, check_tokens, check_truncate
from .cache import AttendOptions, Entry, KeyValueCache, Stats
from .masks import UNMASKED, Mask
from .page_pool import PagePool, Row
from .rope import Rope
from .sdpa import Steps


class PagedCache(KeyValueCache):
    """Keys and values in the pages of a pool. A call that raises leaves both as they were.

    A cache that is no longer needed is to be reset, so that its pages are free. rope: turns keys and queries; None =
    neither. rope_at: as for KVCache.
    Raises ShapeMismatch, InvalidConfig.
    """

    def __init__(
        self, pool: PagePool, batch: int, *, rope: Rope | None = None, rope_at: str | None = None
    ) -> None:
        self.pool, self.batch, self.rope, self.rope_at = pool, batch, rope, rope_at
        self.num_kv_heads, self.head_dim, self.value_dim = pool.num_kv_heads, pool.head_dim, pool.value_dim
        self.dtype, self.device = pool.dtype, pool.k.device
        check_sizes("paged_cache", self, batch=0)
        check_cache_rope("paged_cache", self)
        self._rows = [pool.new_row() for _ in range(batch)]

    @property
    def _lengths(self) -> list[int]:
        return [row.length for row in self._rows]

    def append(
        self,
        k: Tensor,
        v: Tensor,
        lengths: Tensor | None = None,
        *,
        padding: str = "right",
        tokens: Tensor | None = None,
    ) -> None:
        """As KVCache's. tokens: int64 (B, T), from which k and v come; then full pages that hold the same after
        the same tokens become one.
        """
        self._commit(self._prepare("append", k, v, lengths, padding, tokens))

    def append_attend(
        self,
        k: Tensor,
        v: Tensor,
        q: Tensor,
        lengths: Tensor | None = None,
        *,
        padding: str = "right",
        tokens: Tensor | None = None,
        **options: Unpack[AttendOptions],
    ) -> Steps:
        """`append`, then `attend_steps`; if either fails, nothing has changed."""
        entry = self._prepare("append_attend", k, v, lengths, padding, tokens)
        return self._append_attend(entry, q, options)

    def _prepare(
        self,
        name: str,
        k: Tensor,
        v: Tensor,
        lengths: Tensor | None,
        padding: str,
        tokens: Tensor | None = None,
    ) -> Entry:
        # 1. check: everything, the free pages too, before anything is changed
        entry = self._entry(name, k, v, lengths, padding)
        if tokens is not None:
            T = k.shape[2]
            check_tokens(name, tokens, self.batch, T)
            starts = [T - n if padding == "left" else 0 for n in entry.counts]
            spans = zip(tokens.tolist(), starts, entry.counts, strict=True)
            entry = replace(entry, tokens=[row[start : start + n] for row, start, n in spans])
        check_pages(name, self._pages_needed(entry.counts), self.pool.num_free)
        return entry

    def _pages_needed(self, counts: Sequence[int]) -> int:
        """New pages, and copies of last pages that are shared: all who write to one copy it, but the last owner."""
        S = self.pool.page_size
        growing = [(row, n) for row, n in zip(self._rows, counts, strict=True) if n > 0]
        new = sum(_pages(row.length + n, S) - len(row.pages) for row, n in growing)
        writers = Counter(row.pages[-1] for row, _ in growing if row.length % S)
        return new + sum(min(n, int(self.pool.references[page]) - 1) for page, n in writers.items())

    def _commit(self, entry: Entry) -> None:
        pool, S = self.pool, self.pool.page_size
        for row, count in zip(self._rows, entry.counts, strict=True):
            if count == 0:
                continue
            # 2. take pages: as many as come to be full or begun, and the last one for this row alone
            if row.length % S:
                row.pages[-1] = pool.writable(row.pages[-1])
            while len(row.pages) < _pages(row.length + count, S):
                row.pages.append(pool.take())
            row.length += count

        # 3. write: position j into slot j mod S of page j div S, in all rows at once
        page, slot = self._table()[entry.row, entry.position // S], entry.position % S  # (N,)
        pool.k[page, :, slot] = entry.k  # (N, Hkv, D)
        pool.v[page, :, slot] = entry.v  # (N, Hkv, Dv)
        if entry.tokens is not None:
            self._share_prefixes(entry.tokens)

    def _table(self) -> Tensor:
        """The pages of every row: (B, P); which one stands beyond a row's last does not matter."""
        most = max((len(row.pages) for row in self._rows), default=0)
        pages = [row.pages + [0] * (most - len(row.pages)) for row in self._rows]
        return torch.tensor(pages, dtype=torch.int64, device=self.device).reshape(self.batch, most)

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

    def _attend(self, q: Tensor, mask: Mask = UNMASKED, **options: Any) -> Steps:
        # 5. attend: to the slots of each row's pages, gathered
        k, v, _ = self.read()
        return self._attend_to(q, k, v, self._aligned(mask, q.shape[2]), **options)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] slots. Raises ShapeMismatch, InvalidConfig."""
        check_truncate("truncate", lengths, self._lengths)
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

    def read(self) -> tuple[Tensor, Tensor, Tensor]:
        """Copies: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond a row's length; lengths (B,)."""
        table = self._table()  # (B, P)
        k, v = (self._gathered(pages[table]) for pages in (self.pool.k, self.pool.v))
        return k, v, self.lengths

    def _gathered(self, pages: Tensor) -> Tensor:
        """(B, Hkv, L, n) of each row's pages (B, P, Hkv, S, n)."""
        slots = pages.transpose(1, 2).flatten(2, 3)  # (B, Hkv, P·S, n)
        return self._only_held(slots[:, :, : len(self)])

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


def _pages(length: int, page_size: int) -> int:
    """How many pages so many slots are in."""
    return -(-length // page_size)
