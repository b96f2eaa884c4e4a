"""The memory of paged caches: two tensors on the device. Who holds which page is the host's to know, and NumPy's text.

Letters: Hkv key/value heads, S slots of a page, D and Dv head sizes.
"""

from typing import Any

import torch
from torch import Tensor

from .. import page_pool
from ..page_pool import Row

__all__ = ["PagePool", "Row"]


class PagePool(page_pool.PagePool):
    """`num_pages` pages of `page_size` slots, for any number of caches. value_dim: None = head_dim.

    k: (pages, Hkv, S, D). v: (pages, Hkv, S, Dv). Raises InvalidConfig, DtypeMismatch.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        self._device = device
        handed_on: Any = dtype  # unread, to `_type`
        super().__init__(num_pages, page_size, num_kv_heads, head_dim, value_dim, dtype=handed_on)

    def _type(self, dtype: Any) -> torch.dtype:
        assert isinstance(dtype, torch.dtype)
        return dtype

    def _memory(self, channels: int) -> Tensor:
        shape = (self.num_pages, self.num_kv_heads, self.page_size, channels)
        return torch.zeros(shape, dtype=self.dtype, device=self._device)

    def _same_bits(self, a: int, b: int) -> bool:
        return all(torch.equal(_bits(x[a]), _bits(x[b])) for x in (self.k, self.v))


def _bits(x: Tensor) -> Tensor:
    """The same memory as integers, since NaN is not equal to itself and -0 is equal to 0."""
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])
