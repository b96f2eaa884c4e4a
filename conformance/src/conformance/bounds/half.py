"""The one rounding of a result that is stored in a half type."""

import numpy as np

from ..tensors import HALF_FORMATS, HALVES, NUMPY_DTYPES


def half_rounding(bound: np.ndarray, expected: np.ndarray, dtype: str) -> np.ndarray:
    """What may join the bound of a result that is rounded to a half type once; 0 for f32 and f64.

    fl(y') - y = (y' - y) + the rounding of y', which is at most u |y'| or, among subnormals, half a step.
    """
    if dtype not in HALVES:
        return np.zeros(bound.shape)
    half = HALF_FORMATS[dtype]
    size = np.abs(expected.astype(np.float64)) + bound
    return np.asarray(half.eps / 2 * size + half.step / 2)


def round_to_half(bound: np.ndarray, expected: np.ndarray, dtype: str) -> np.ndarray:
    """The whole distance that a result may have: its bound, and its rounding to a half type if it is one."""
    return np.asarray(bound + half_rounding(bound, expected, dtype))


def overflow_threshold(dtype: str) -> float:
    """From here on a magnitude rounds to infinity: the largest finite value and half a step."""
    if dtype in HALVES:
        largest, eps = HALF_FORMATS[dtype].max, HALF_FORMATS[dtype].eps
    else:
        info = np.finfo(NUMPY_DTYPES[dtype])
        largest, eps = float(info.max), float(info.eps)
    return largest * (1 + eps / 4)
