"""Choices of a campaign: hypothesis decides and shrinks sizes and options; numbers come from a drawn seed.

Elements are not drawn one by one: a tensor of a few hundred numbers would be slow, and shrinking it says little. What
shrinks is the seed's question: fewer rows, fewer keys, no mask, no poison.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from ..inputs import Draw

T = TypeVar("T")
Decide = Callable[[st.SearchStrategy[Any]], Any]


class Chooser:
    """The decisions of one question. `decide` is hypothesis's own; the first choice of each kind is the plainest."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._numbers = Draw(f"fuzz/{decide(st.integers(0, 2**20))}")
        self._size = float(self.one_of([1.0, 0.05, 4.0, 30.0]))

    def integer(self, low: int, high: int) -> int:
        """From low to high; shrinks to low."""
        return int(self._decide(st.integers(low, high)))

    def one_of(self, options: Sequence[T]) -> T:
        """One of them; shrinks to the first."""
        choice: T = self._decide(st.sampled_from(list(options)))
        return choice

    def maybe(self) -> bool:
        """Shrinks to no."""
        return bool(self._decide(st.booleans()))

    def rarely(self) -> bool:
        """One time in eight; shrinks to no."""
        return self.integer(0, 7) == 7

    def sometimes(self) -> bool:
        """One time in three; shrinks to no."""
        return self.integer(0, 2) == 2

    def batch(self) -> int:
        """Mostly 1 or 2 rows."""
        return 0 if self.rarely() else self.integer(1, 2)

    def length(self) -> int:
        """Of a sequence: mostly small, at times 0, or around a vector or a tile."""
        return (
            self.integer(1, 5)
            if not self.rarely()
            else self.one_of([0, 0, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65])
        )

    def short(self) -> int:
        """Of a sequence whose bound takes a derivative by each of its elements: a long one would take minutes."""
        return self.integer(1, 5) if not self.rarely() else self.one_of([0, 7, 8, 9])

    def width(self) -> int:
        """Of a head or a channel axis, at least 1."""
        return self.integer(1, 6) if not self.rarely() else self.one_of([7, 8, 9, 16, 17, 33])

    def number(self, low: float, high: float) -> float:
        """A float with few digits, so that it reads well in a case; shrinks towards low."""
        return low + (high - low) * self.integer(0, 16) / 16

    def floats(self, *shape: int) -> np.ndarray:
        """Signed numbers of the question's size."""
        return self._size * self._numbers.normal(*shape)

    def plain(self, *shape: int) -> np.ndarray:
        """Signed numbers of about 1, whatever the question's size."""
        return self._numbers.normal(*shape)

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """int64 from low to high, both included."""
        return self._numbers.integers(low, high + 1, *shape)

    def flags(self, *shape: int) -> np.ndarray:
        """bool, most of them True."""
        return self._numbers.choice(self.one_of([0.7, 0.3, 0.95, 0.0]), *shape)

    def poisoned(self, x: np.ndarray, value: float) -> np.ndarray:
        """The same with one element replaced."""
        if x.size:
            x = x.copy()
            x.flat[self.integer(0, x.size - 1)] = value
        return x
