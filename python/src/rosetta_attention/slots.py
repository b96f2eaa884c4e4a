"""Where most caches keep what they hold: rows of slots, each with a position, in order.

A row has a length of its own and knows the position of its next token. What lies beyond the length is junk.
Nothing here checks anything; that is the caches' matter.

Letters: B batch, L longest row, H heads and n channels of whatever a slot holds under one name.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import BoolArray, IntArray, zeros

Part = NDArray[Any]
TRACKED = "tracked"  # the name of the weights that a slot was given, which are no content


class Slots:
    """parts: for each name what a slot holds under it, as (heads, channels, dtype). room: slots of a row.

    Raises InvalidConfig where the memory does not hold them.
    """

    def __init__(
        self, batch: int, parts: Mapping[str, tuple[int, int, np.dtype[Any]]], room: int = 0
    ) -> None:
        self.parts: dict[str, Part] = {
            name: zeros((batch, heads, room, channels), dtype)
            for name, (heads, channels, dtype) in parts.items()
        }
        self.positions: IntArray = zeros((batch, room), np.int64)  # (B, room)
        self.lengths: IntArray = np.zeros(batch, np.int64)  # (B,)
        self.next: IntArray = np.zeros(batch, np.int64)  # (B,), the position of the next token

    @property
    def room(self) -> int:
        """How many slots of a row there is memory for."""
        return int(self.positions.shape[1])

    @property
    def longest(self) -> int:
        """L."""
        return int(self.lengths.max(initial=0))

    @property
    def num_bytes(self) -> int:
        """Of all slots held."""
        parts = [x for name, x in self.parts.items() if name != TRACKED]
        slot: int = sum(x.shape[1] * x.shape[3] * x.itemsize for x in parts)
        return int(self.lengths.sum()) * slot

    def held(self, name: str) -> Part:
        """A view (B, H, L, n); what lies beyond a row's length is junk."""
        return self.parts[name][:, :, : self.longest]

    def read(self, name: str) -> Part:
        """A copy (B, H, L, n), zero beyond a row's length; by selection, since junk may be NaN."""
        exists = np.arange(self.longest) < self.lengths[:, None]  # (B, L)
        part = self.held(name)
        return np.where(exists[:, None, :, None], part, np.zeros((), part.dtype))

    def read_positions(self) -> IntArray:
        """A copy (B, L), -1 beyond a row's length."""
        exists = np.arange(self.longest) < self.lengths[:, None]  # (B, L)
        return np.where(exists, self.positions[:, : self.longest], -1)

    def make_room(self, needed: int) -> None:
        """Memory for so many slots in a row: at least double, so that n appends copy O(n) positions."""
        if needed > self.room:
            self.grow(max(needed, 2 * self.room))

    def grow(self, room: int) -> None:
        """Memory for more slots; what is held stays. All parts grow or, without the memory for them, none."""
        more = room - self.room
        parts = {name: np.pad(x, ((0, 0), (0, 0), (0, more), (0, 0))) for name, x in self.parts.items()}
        self.positions = np.pad(self.positions, ((0, 0), (0, more)))  # (B, room)
        self.parts = parts

    def write(self, rows: Sequence[Mapping[str, Part]]) -> None:
        """(H, count, n) under each name, and 0 under others, behind what the row holds. It exists after `advance`."""
        for b, content in enumerate(rows):
            start = self.lengths[b]
            end = start + max(x.shape[1] for x in content.values())
            for name, part in self.parts.items():
                part[b, :, start:end] = content.get(name, 0)

    def advance(self, counts: IntArray) -> None:
        """So many slots more in each row, at the positions from `next` on."""
        for b, count in enumerate(counts):
            start = self.lengths[b]
            self.positions[b, start : start + count] = self.next[b] + np.arange(count)
        self.lengths = self.lengths + counts
        self.next = self.next + counts

    def keep(self, kept: BoolArray) -> None:
        """Forgets the slots where `kept` (B, L) is False; the others close ranks."""
        for b, count in enumerate(self.lengths):
            stay = np.flatnonzero(kept[b, :count])
            for part in self.parts.values():
                part[b, :, : stay.size] = part[b][:, stay]
            self.positions[b, : stay.size] = self.positions[b, stay]
        exists = np.arange(self.longest) < self.lengths[:, None]  # (B, L)
        self.lengths = np.sum(kept & exists, axis=1, dtype=np.int64)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Each row keeps its first slots and goes on after the last of them."""
        self.lengths = np.array(lengths, np.int64).reshape(-1)  # (B,)
        last = np.maximum(self.lengths - 1, 0)[:, None]  # (B, 1)
        if self.room:
            behind = np.take_along_axis(self.positions, last, axis=1)[:, 0] + 1  # (B,)
            self.next = np.where(self.lengths > 0, behind, 0)

    def reset(self) -> None:
        """Forgets everything; the memory is kept."""
        self.lengths = np.zeros_like(self.lengths)
        self.next = np.zeros_like(self.next)

    def reordered(self, index: Sequence[int]) -> "Slots":
        """A copy whose row i is row index[i]."""
        rows = np.array(index, np.int64)
        other = copy(self)
        other.parts = {name: x[rows] for name, x in self.parts.items()}
        other.positions, other.lengths = self.positions[rows], self.lengths[rows]
        other.next = self.next[rows]
        return other

    def copy(self) -> "Slots":
        """A copy that shares nothing."""
        return self.reordered(range(self.lengths.size))

    def restored(
        self, lengths: IntArray, following: IntArray, positions: IntArray, parts: Mapping[str, Part]
    ) -> "Slots":
        """Slots of the same kind with this content; (B, L) positions and (B, H, L, n) under each name."""
        other = copy(self)
        other.parts = {name: np.array(parts[name], x.dtype) for name, x in self.parts.items()}
        other.positions, other.lengths, other.next = positions.copy(), lengths.copy(), following.copy()
        return other
