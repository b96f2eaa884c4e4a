"""Names for the arrays that this package takes. All are NumPy arrays of any strides."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint32]
Float64Array = npt.NDArray[np.float64]
