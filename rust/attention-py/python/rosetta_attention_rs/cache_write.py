"""New positions written into a cache of a fixed length, each row at its own index."""

from . import _rust
from .arrays import Array, IntArray


def cache_write(
    cache: Array, update: Array, write_indices: IntArray | None = None, *, circular: bool = False
) -> Array:
    """A copy of `cache` (B, ..., L, n) with `update` (B, ..., T, n) at `write_indices`, int64 (B,); None = 0.

    circular: an index is taken modulo L, and an update that reaches the end goes on at the start.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
    """
    return _rust.cache_write(cache, update, write_indices, circular)
