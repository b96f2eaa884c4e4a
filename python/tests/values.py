"""Random arrays, and the arrays that a result is made of."""

from typing import Any

import numpy as np


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def leaves(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """The arrays of a result with their names."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", [""] * len(value))
        return [leaf for part in zip(value, names, strict=True) for leaf in leaves(*part)]
    return [(name, value)]
