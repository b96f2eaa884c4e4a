"""Caches whose slots can be forgotten one by one, and whose positions can move to close the gap.

Letters: B batch, H heads, L longest row, n channels.

Source: Xiao et al., "Efficient streaming language models with attention sinks", 2023, section 3.2.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import IntArray
from .checks import check_evict, check_shift
from .slot_cache import SlotCache


class EvictingCache(SlotCache):
    """Evict leaves gaps between positions, shift closes them."""

    def evict(self, positions: Sequence[int]) -> None:
        """Every row forgets these positions, where it holds them; the others keep theirs.

        The next token stands where it would have stood. Raises InvalidConfig.
        """
        check_evict("evict", positions)
        gone = {int(j) for j in positions}  # of any size, unlike int64
        held = self._slots.positions[:, : len(self)]  # (B, L)
        kept = [[j not in gone for j in row] for row in held.tolist()]
        self._slots.keep(np.array(kept, np.bool_).reshape(held.shape))

    def shift(self, by: int, start: int) -> None:
        """Every position from `start` on moves by `by`, and its key turns with it; so does the position of the
        next token, if it is beyond `start`.

        Raises InvalidConfig where a position would fall below 0, or come to or pass one that stays.
        """
        slots = self._slots
        rows = [row[:n] for row, n in zip(slots.positions, slots.lengths, strict=True)]
        check_shift("shift", by, start, rows, slots.next)
        if by == 0:
            return
        moved = [np.flatnonzero(row >= start) for row in rows]
        turned = [self._turned(b, which, by) for b, which in enumerate(moved)]
        for b, (which, content) in enumerate(zip(moved, turned, strict=True)):
            for name, x in content.items():
                slots.parts[name][b][:, which] = x
            slots.positions[b, which] += by
        slots.next = np.where(slots.next > start, slots.next + by, slots.next)

    @abstractmethod
    def _turned(self, b: int, slots: IntArray, by: int) -> Mapping[str, NDArray[Any]]:
        """The content of these slots of row b, (H, count, n), with keys turned by so many positions more."""
