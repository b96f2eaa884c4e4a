"""What those caches share that keep their rows in slots of their own."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

from numpy.typing import NDArray

from .arrays import IntArray
from .cache import Cache, Content, Stats
from .checks import check_reorder, check_room
from .slots import Slots


class SlotCache(Cache):
    """A cache with slots. capacity: most of them that a row may hold; None = grows by doubling."""

    capacity: int | None = None
    _slots: Slots

    @property
    def lengths(self) -> IntArray:
        """How many slots each row holds: a copy, (B,)."""
        return self._slots.lengths.copy()

    def slot_positions(self) -> IntArray:
        """The position of every slot: (B, L), -1 beyond a row's length."""
        return self._slots.read_positions()

    def reset(self) -> None:
        """Forget everything; the memory is kept."""
        self._slots.reset()

    def reorder(self, index: Sequence[int]) -> None:
        """New row i is a copy of the old row index[i]; one a row. Raises ShapeMismatch, InvalidConfig."""
        check_reorder("reorder", index, self.batch)
        self._slots = self._slots.reordered(index)

    def fork(self) -> Self:
        """A second cache with the same content; neither sees what happens to the other."""
        other = copy(self)
        other._slots = self._slots.copy()
        return other

    def stats(self) -> Stats:
        """The slots of each row, and the bytes of all."""
        return Stats(self.lengths, self._slots.num_bytes)

    def content(self) -> Content:
        """Copies of all that is held."""
        slots = self._slots
        return Content(slots.lengths.copy(), slots.next.copy(), slots.read_positions(), self._to_file())

    def restore(self, content: Content) -> None:
        """Holds this and nothing else. Raises CapacityExceeded."""
        check_room("load", int(content.lengths.max(initial=0)), self.capacity)
        parts = self._from_file(content.arrays)
        self._slots = self._slots.restored(content.lengths, content.next, content.positions, parts)

    def _to_file(self) -> dict[str, NDArray[Any]]:
        return {name: self._slots.read(name) for name in self._slots.parts}

    def _from_file(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return arrays
