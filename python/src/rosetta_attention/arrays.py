"""Names for the arrays that this package takes, NumPy arrays of any strides, and memory for caches."""

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidConfig

Array = npt.NDArray[np.floating[Any]]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint32]
Float64Array = npt.NDArray[np.float64]


def zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Memory for a cache. Raises InvalidConfig where there is not so much."""
    try:
        return np.zeros(shape, dtype)
    except MemoryError:
        raise InvalidConfig(f"cache: expected sizes that the memory holds, got {shape}") from None
