"""Fixed patterns of sparse attention: which pairs of a query i and a key j are visible at all."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import _rust
from .arrays import BoolArray, IntArray


class _Pattern:
    """What all patterns can say of themselves, both ways."""

    def shows(self, i: IntArray, j: IntArray, q_len: int, kv_len: int) -> BoolArray:
        """Whether query i sees key j, for tables that broadcast."""
        return _rust.sparse_mask(self, q_len, kv_len, False)[i, j]

    def keys(self, i: int, q_len: int, kv_len: int) -> IntArray:
        """The keys of query i in ascending order, listed without a look at the others."""
        return _rust.pattern_keys(self, i, q_len, kv_len)


@dataclass(frozen=True)
class Window(_Pattern):
    """The keys beside the query: -left <= j - i <= right."""

    left: int
    right: int


@dataclass(frozen=True)
class Dilated(_Pattern):
    """A window with gaps: j - i is a multiple of the dilation d, and -left·d <= j - i <= right·d."""

    left: int
    right: int
    dilation: int


@dataclass(frozen=True)
class Strided(_Pattern):
    """The last few keys, and a column of the past: j <= i, and i - j < stride or a multiple of it."""

    stride: int


@dataclass(frozen=True)
class Fixed(_Pattern):
    """j <= i, and j is in i's block of `stride` or among the last `summary` of its own."""

    stride: int
    summary: int


@dataclass(frozen=True)
class Global(_Pattern):
    """A window, and tokens (their positions) that see all and are seen by all."""

    left: int
    right: int
    tokens: Sequence[int]


@dataclass(frozen=True)
class BigBird(_Pattern):
    """By blocks: `window` on each side, the first `global_blocks` in both directions, and `random` drawn ones."""

    block: int
    window: int
    global_blocks: int
    random: int
    seed: int


@dataclass(frozen=True, eq=False)
class Blocks(_Pattern):
    """By blocks: query i sees key j iff mask[i // block, j // block]; mask is (ceil(Tq/block), ceil(Tk/block))."""

    block: int
    mask: BoolArray = field(repr=False)


Pattern = Window | Dilated | Strided | Fixed | Global | BigBird | Blocks
