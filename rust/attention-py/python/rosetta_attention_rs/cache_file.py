"""A cache in a file, so that another process, in another language, goes on where this one stopped."""

import os

from .cache import Cache


def save(cache: Cache, path: str | os.PathLike[str]) -> None:
    """Write the cache to a file. Raises InvalidFile."""
    cache._cache.save(path)


def load(cache: Cache, path: str | os.PathLike[str]) -> None:
    """Replace what the cache holds by the content of a file that `save` wrote, here or in another language.

    Raises InvalidFile for one that is damaged or foreign, InvalidConfig for one of another kind or size of cache,
    DtypeMismatch, CapacityExceeded.
    """
    cache._cache.load(path)
