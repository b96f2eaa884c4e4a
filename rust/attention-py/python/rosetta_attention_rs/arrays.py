"""Names for the arrays that this package takes: NumPy arrays of any strides.

Floats are float16, bfloat16 (of ml_dtypes), float32 or float64, and all of one call have one type.
"""

from typing import Any

import ml_dtypes  # noqa: F401  (NumPy knows of bfloat16 from here on)
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
WordArray = npt.NDArray[np.uint32]
