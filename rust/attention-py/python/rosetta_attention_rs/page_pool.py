"""The memory of paged caches: pages of a fixed number of slots, counted by who refers to them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _rust


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
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.num_kv_heads, self.head_dim = num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        sizes = (num_pages, page_size, num_kv_heads, head_dim, self.value_dim)
        self._pool = _rust.PagePool(*sizes, self.dtype)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Pages that are used, shared by more than one row or fork, and free."""
        return self._pool.counts()

    @property
    def num_free(self) -> int:
        """Pages that can still be taken."""
        return self.counts[2]
