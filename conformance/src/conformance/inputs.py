"""Seeded inputs that come out the same on every machine, in every version of every library.

The bytes are SHAKE-256 of the case's id, eight a number, so nothing here depends on a random generator whose stream may
change. What is stored stays the authority all the same; the id is its provenance.
"""

import hashlib
import math

import numpy as np


class Draw:
    """A stream of numbers that belongs to one name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def uniform(self, *shape: int) -> np.ndarray:
        """float64 in [0, 1), multiples of 2^-53."""
        self._count += 1
        size = math.prod(shape)
        seed = f"{self._name}#{self._count}".encode()
        words = np.frombuffer(hashlib.shake_256(seed).digest(8 * size), dtype="<u8")
        return np.asarray((words >> np.uint64(11)) * 2.0**-53).reshape(shape)

    def normal(self, *shape: int) -> np.ndarray:
        """float64 of mean 0 and variance 1 within (-3, 3): bell-shaped enough, and sums of exact terms only."""
        total = self.uniform(*shape) + self.uniform(*shape) + self.uniform(*shape)
        return np.asarray(2 * (total - 1.5))

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """int64 from low to high - 1."""
        return np.asarray(low + np.floor(self.uniform(*shape) * (high - low)), np.int64)

    def choice(self, probability: float, *shape: int) -> np.ndarray:
        """bool, True with that probability."""
        return np.asarray(self.uniform(*shape) < probability)
