"""The cache of cross-attention: keys and values of the encoder, written once and read at every step."""

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _rust
from .cache import KeyValueCache


class CrossCache(KeyValueCache):
    """Keys and values that one append brings; attention to them is neither causal nor windowed.

    value_dim: None = head_dim. Raises InvalidConfig, DtypeMismatch.
    """

    kind = "cross"

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.batch, self.num_kv_heads, self.head_dim = batch, num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._cache = _rust.cross_cache((batch, num_kv_heads, head_dim, self.value_dim, self.dtype))
