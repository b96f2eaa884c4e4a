"""The memory of paged caches: pages of a fixed number of slots, counted by who refers to them.

A page is free, or belongs to as many rows as its count says. Whoever wants to write to a page that others refer to
writes to a copy. Who holds a page never matters to the values, only to how much memory they take.

Letters: Hkv key/value heads, S slots of a page, D and Dv head sizes.

Source: Kwon et al., "Efficient memory management for large language model serving with PagedAttention", 2023,
section 4.
"""

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import DTypeLike

from .arrays import IntArray, zeros
from .checks import check_numbers, check_sizes


@dataclass(eq=False)
class Row:
    """A row of a paged cache. tokens: those of its first slots, as far as they are known without a gap."""

    pages: list[int] = field(default_factory=list)
    length: int = 0
    tokens: list[int] = field(default_factory=list)


class PagePool:
    """`num_pages` pages of `page_size` slots, for any number of caches. value_dim: None = head_dim.

    Raises InvalidConfig, DtypeMismatch.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.num_kv_heads, self.head_dim = num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.dtype: Any = self._type(dtype)
        check_sizes("page_pool", self, num_pages=0, page_size=1, num_kv_heads=1, head_dim=1, value_dim=0)
        check_numbers(
            "page_pool", "num_pages", num_pages, page_size, num_kv_heads, max(head_dim, self.value_dim)
        )
        self.k: Any = self._memory(head_dim)  # (pages, Hkv, S, D)
        self.v: Any = self._memory(self.value_dim)  # (pages, Hkv, S, Dv)
        self.references: IntArray = zeros((num_pages,), np.int64)
        self._free = list(range(num_pages))[::-1]  # the last one is taken next
        # Pages that can be shared, numbered in the order that they became so.
        self._known: dict[int, int] = {}
        self._last = 0
        self._rows: WeakSet[Row] = WeakSet()

    def _type(self, dtype: DTypeLike) -> Any:
        """Of the library whose arrays the pages are."""
        return np.dtype(dtype)

    def _memory(self, channels: int) -> Any:
        """(pages, Hkv, S, channels)."""
        return zeros((self.num_pages, self.num_kv_heads, self.page_size, channels), self.dtype)

    @property
    def num_free(self) -> int:
        """How many pages can be taken."""
        return len(self._free)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Pages in use, those of them with more than one reference, free ones."""
        return self.num_pages - self.num_free, int(np.sum(self.references > 1)), self.num_free

    @property
    def num_bytes(self) -> int:
        """Of all pages in use."""
        slot: int = self.num_kv_heads * (self.head_dim + self.value_dim) * self.dtype.itemsize
        return self.counts[0] * self.page_size * slot

    def new_row(self) -> Row:
        """An empty row, whose pages others may come to share."""
        row = Row()
        self._rows.add(row)
        return row

    def take(self) -> int:
        """A free page, of which there must be one."""
        # 1. take: what it held before stays, and is never seen
        page = self._free.pop()
        self.references[page] = 1
        self._known.pop(page, None)
        return page

    def share(self, page: int) -> int:
        """The same page, for one row more."""
        # 2. share: nothing is copied until somebody writes
        self.references[page] += 1
        return page

    def writable(self, page: int) -> int:
        """The page itself if nobody else refers to it, else a copy in a page of its own."""
        # 3. copy on write: the others keep the old page
        if self.references[page] == 1:
            self._known.pop(page, None)
            return page
        own = self.take()
        self.k[own], self.v[own] = self.k[page], self.v[page]
        self.free(page)
        return own

    def free(self, page: int) -> None:
        """One row refers to it no longer."""
        # 4. free: with the last reference
        self.references[page] -= 1
        if self.references[page] == 0:
            self._free.append(page)

    def twin(self, row: Row, index: int) -> int | None:
        """The page that can stand for the row's own at `index`: the same bits after the same tokens, and known for
        longer. Without one the page is known from now on.
        """
        end, mine = (index + 1) * self.page_size, row.pages[index]
        rows = [other for other in self._rows if other.tokens[:end] == row.tokens[:end]]
        alike = {other.pages[index] for other in rows} & self._known.keys()
        age = self._known.get(mine, self._last)
        older = [page for page in alike if self._known[page] < age and self._same_bits(page, mine)]
        if not older and mine not in self._known:
            self._known[mine] = self._last
            self._last += 1
        return min(older, key=self._known.__getitem__, default=None)

    def _same_bits(self, a: int, b: int) -> bool:
        """As bytes, since NaN is not equal to itself and -0 is equal to 0."""
        return all(x[a].tobytes() == x[b].tobytes() for x in (self.k, self.v))
