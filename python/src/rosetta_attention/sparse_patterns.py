"""Sparse attention patterns: which keys a query looks at, known before any score is.

Each pattern says the same thing in two ways, held against each other by the tests: `shows`, a predicate over
tables of positions, and `keys`, the keys of one query without a look at all the others. Positions are those
of the arrays: query i, key j, both from 0.

    window    -left <= j - i <= right
    dilated   the same with a stride: j - i a multiple of d, -left·d <= j - i <= right·d
    strided   j <= i, and near (i - j < stride) or a whole number of strides away
    fixed     j <= i, and in the same block of `stride` as i or among the last `summary` of any block
    global    as window, or i or j is one of some tokens that see and are seen by all
    bigbird   blocks: neighbours, the first few, and some at random
    blocks    any table of blocks

Letters: Tq and Tk query and key lengths, a and c the blocks of a query and a key.

Sources: Beltagy, Peters and Cohan, "Longformer", 2020 (window, dilated, global); Child et al., "Generating long
sequences with sparse transformers", 2019 (strided, fixed); Zaheer et al., "Big Bird", 2020.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .arrays import BoolArray, IntArray
from .philox import philox_words


@dataclass(frozen=True)
class Window:
    """left, right: how many keys on each side of itself a query sees."""

    left: int
    right: int

    def shows(self, i: IntArray, j: IntArray, q_len: int, kv_len: int) -> BoolArray:
        """Whether query i sees key j, for tables that broadcast."""
        # 1. window: near on both sides
        near: BoolArray = (-self.left <= j - i) & (j - i <= self.right)
        return near

    def keys(self, i: int, q_len: int, kv_len: int) -> IntArray:
        """The keys of query i in ascending order."""
        return np.arange(max(i - self.left, 0), min(i + self.right + 1, kv_len))


@dataclass(frozen=True)
class Dilated:
    """left, right: how many keys on each side. dilation: how far one is from the next."""

    left: int
    right: int
    dilation: int

    def shows(self, i: IntArray, j: IntArray, q_len: int, kv_len: int) -> BoolArray:
        """Whether query i sees key j, for tables that broadcast."""
        # 2. dilated: only every dilation-th one, which reaches as many times further
        d = self.dilation
        steps: BoolArray = (j - i) % d == 0
        return steps & (-self.left * d <= j - i) & (j - i <= self.right * d)

    def keys(self, i: int, q_len: int, kv_len: int) -> IntArray:
        """The keys of query i in ascending order."""
        d = self.dilation
        steps_left = min(self.left, i // d)
        return np.arange(i - steps_left * d, min(i + self.right * d + 1, kv_len), d)


@dataclass(frozen=True)
class Strided:
    """stride: how many keys before it, itself included, a query sees; and how far it looks in steps of."""

    stride: int

    def shows(self, i: IntArray, j: IntArray, q_len: int, kv_len: int) -> BoolArray:
        """Whether query i sees key j, for tables that broadcast."""
        # 3. strided: the last few, and a column through all before them; two such layers reach every key
        seen: BoolArray = (i - j < self.stride) | ((i - j) % self.stride == 0)
        return (j <= i) & seen

    def keys(self, i: int, q_len: int, kv_len: int) -> IntArray:
        """The keys of query i in ascending order."""
        near = range(max(i - self.stride + 1, 0), min(i + 1, kv_len))
        column = range(i % self.stride, min(i + 1, kv_len), self.stride)
        return _ascending(near, column)


@dataclass(frozen=True)
class Fixed:
    """stride: the size of a block. summary: how many positions at its end stand for it to later blocks."""

    stride: int
    summary: int

    def shows(self, i: IntArray, j: IntArray, q_len: int, kv_len: int) -> BoolArray:
        """Whether query i sees key j, for tables that broadcast."""
        # 4. fixed: the own block, and the summaries of those before
        same: BoolArray = i // self.stride == j // self.stride
        return (j <= i) & (same | (j % self.stride >= self.stride - self.summary))

    def keys(self, i: int, q_len: int, kv_len: int) -> IntArray:
        """The keys of query i in ascending order."""
        end = min(i + 1, kv_len)
        own = range(i - i % self.stride, end)
        ends = range(0, end, self.stride)
        summaries = (range(b + self.stride - self.summary, min(b + self.stride, end)) for b in ends)
        return _ascending(own, *summaries)


@dataclass(frozen=True)
class Global:
    """left, right: as Window. tokens: positions that see every key, and whose key every query sees."""

    left: int
    right: int
    tokens: Sequence[int]

    def shows(self, i: IntArray, j: IntArray, q_len: int, kv_len: int) -> BoolArray:
        """Whether query i sees key j, for tables that broadcast."""
        # 5. global: a window, and rows and columns of tokens through the whole table
        tokens = np.array(self.tokens, np.int64)
        return (
            Window(self.left, self.right).shows(i, j, q_len, kv_len) | np.isin(i, tokens) | np.isin(j, tokens)
        )

    def keys(self, i: int, q_len: int, kv_len: int) -> IntArray:
        """The keys of query i in ascending order."""
        if i in self.tokens:
            return np.arange(kv_len)
        near = Window(self.left, self.right).keys(i, q_len, kv_len)
        return _ascending(near, [token for token in self.tokens if token < kv_len])


@dataclass(frozen=True)
class BigBird:
    """All in blocks of `block` positions.

    window: how many blocks on each side. global_blocks: how many first blocks see and are seen by all.
    random: how many further blocks each block of queries draws, by Philox from `seed`.
    """

    block: int
    window: int
    global_blocks: int
    random: int
    seed: int

    def shows(self, i: IntArray, j: IntArray, q_len: int, kv_len: int) -> BoolArray:
        """Whether query i sees key j, for tables that broadcast."""
        # 6. bigbird: of blocks; near each other, one of the first, or drawn
        a, c = i // self.block, j // self.block
        shown: BoolArray = (
            (np.abs(a - c) <= self.window) | (a < self.global_blocks) | (c < self.global_blocks)
        )
        for row in range(-(-q_len // self.block)):
            shown = shown | ((a == row) & np.isin(c, self.drawn(row, kv_len)))
        return shown

    def keys(self, i: int, q_len: int, kv_len: int) -> IntArray:
        """The keys of query i in ascending order."""
        a = i // self.block
        return _keys_of_blocks([*self._chosen(a, kv_len), *self.drawn(a, kv_len)], self.block, kv_len)

    def drawn(self, a: int, kv_len: int) -> list[int]:
        """The random blocks of block a of queries: each draw removes one from those it does not see yet."""
        chosen = set(self._chosen(a, kv_len))
        left = [c for c in range(-(-kv_len // self.block)) if c not in chosen]
        words = philox_words(self.seed, a * self.random, min(self.random, len(left)))
        return [left.pop(int(w) * len(left) >> 32) for w in words]

    def _chosen(self, a: int, kv_len: int) -> list[int]:
        """The blocks of keys that need no draw."""
        blocks = -(-kv_len // self.block)
        if a < self.global_blocks:
            return list(range(blocks))
        near = range(max(a - self.window, 0), min(a + self.window + 1, blocks))
        return sorted({*range(min(self.global_blocks, blocks)), *near})


@dataclass(frozen=True, eq=False)
class Blocks:
    """block: the size of a block. mask: bool (ceil(Tq / block), ceil(Tk / block)), True = attend."""

    block: int
    mask: BoolArray = field(repr=False)

    def shows(self, i: IntArray, j: IntArray, q_len: int, kv_len: int) -> BoolArray:
        """Whether query i sees key j, for tables that broadcast."""
        # 7. blocks: as the table of blocks says
        shown: BoolArray = self.mask[i // self.block, j // self.block]
        return shown

    def keys(self, i: int, q_len: int, kv_len: int) -> IntArray:
        """The keys of query i in ascending order."""
        return _keys_of_blocks(np.flatnonzero(self.mask[i // self.block]).tolist(), self.block, kv_len)


Pattern = Window | Dilated | Strided | Fixed | Global | BigBird | Blocks


def _ascending(*parts: Sequence[int] | IntArray) -> IntArray:
    """All of these, each once."""
    keys: IntArray = np.unique(np.concatenate([np.asarray(part, np.int64) for part in parts]))
    return keys


def _keys_of_blocks(blocks: Sequence[int], block: int, kv_len: int) -> IntArray:
    """The keys in these blocks, the last of which may be cut short."""
    keys = [range(c * block, min((c + 1) * block, kv_len)) for c in sorted(blocks)]
    return _ascending([], *keys)
