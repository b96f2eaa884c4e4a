"""Random words that depend on a seed and an index alone: Philox4x32-10."""

from . import _rust
from .arrays import WordArray


def philox_words(seed: int, first: int, count: int) -> WordArray:
    """The words first, ..., first + count - 1 of `seed`: uint32 (count,). Raises InvalidConfig."""
    return _rust.philox_words(seed, first, count)
