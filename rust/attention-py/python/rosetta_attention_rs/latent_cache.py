"""The latent KV cache: one latent and one rotary key a token, shared by all heads."""

from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from . import _rust
from .arrays import Array, IntArray
from .cache import AttendOptions, Cache, of_attend
from .sdpa import Steps


class LatentCache(Cache):
    """Latents (B, L, R) and rotary keys (B, L, Dr) of the past. Queries are (B, H, Tq, R + Dr), outputs (B, H, Tq, R).

    capacity: most positions a row may hold; None = grows by doubling. rope_dim: may be 0.
    Raises InvalidConfig, DtypeMismatch.
    """

    kind = "latent"

    def __init__(
        self,
        batch: int,
        latent_dim: int,
        rope_dim: int,
        *,
        capacity: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.batch, self.latent_dim, self.rope_dim = batch, latent_dim, rope_dim
        self.capacity = capacity
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._cache = _rust.latent_cache(batch, latent_dim, rope_dim, capacity, self.dtype)

    def append(
        self, latent: Array, rope_key: Array, lengths: IntArray | None = None, *, padding: str = "right"
    ) -> None:
        """Add `latent` (B, T, R) and `rope_key` (B, T, Dr), which is turned already, after the end of each row.

        lengths, padding: as for KVCache.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
        """
        self._cache.append(latent, rope_key, (lengths, padding, None))

    def append_attend(
        self,
        latent: Array,
        rope_key: Array,
        q: Array,
        lengths: IntArray | None = None,
        *,
        padding: str = "right",
        **options: Unpack[AttendOptions],
    ) -> Steps:
        """`append`, then `attend_steps`; if either fails, nothing has changed."""
        new = (latent, rope_key, (lengths, padding, None))
        return Steps(*self._cache.append_attend(*new, q, of_attend(**options)))
