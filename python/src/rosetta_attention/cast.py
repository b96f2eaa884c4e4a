"""The four float types, how a number goes from one to another, and how every op takes the half ones.

    f16    1 sign, 5 exponent, 10 fraction bits        f32    1, 8, 23
    bf16   1 sign, 8 exponent,  7 fraction bits        f64    1, 11, 52

Half types are for storage: at the edge of every public function `op` widens them to f32, and rounds each result
once (edge.py).

Sources: IEEE 754-2019, section 4.3.1 (round half to even); Boldo and Melquiond, "Emulation of a FMA and
correctly rounded sums: proved algorithms using rounding to odd", 2008.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import ml_dtypes
import numpy as np

from .arrays import Array
from .checks import check_cast
from .edge import HALVES, Edge

TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
NAMES = {dtype: name for name, dtype in TYPES.items()}

P = ParamSpec("P")
R = TypeVar("R")


def cast(x: Array, to: str) -> Array:
    """`x` in the type `to`: "f16", "bf16", "f32" or "f64".

    What is beyond the largest finite value plus half a step becomes infinite; subnormals are kept; NaN stays
    NaN. Raises DtypeMismatch, Unsupported.
    """
    check_cast("cast", x, to, tuple(TYPES))
    return narrow(widen(x), to)


def widen(x: Array) -> Array:
    """Half types as f32; the wide types as they are."""
    # 1. widen: exact, since f32 has every exponent and every fraction bit of both
    return x.astype(np.float32) if NAMES.get(x.dtype) in HALVES else x


def narrow(x: Array, to: str) -> Array:
    """`x`, of f32 or f64, in the type `to`."""
    # 2. narrow: to the nearest value, half to even, in one step from the type that x has
    with np.errstate(over="ignore", invalid="ignore"):  # too large is infinite
        if to == "bf16" and x.dtype == np.float64:
            x = _round_to_odd(x)  # ml_dtypes would round to nearest twice, the second time from a false tie
        return np.asarray(x).astype(TYPES[to])


def _round_to_odd(x: Array) -> Array:
    """f64 to f32, inexact results to the neighbour with an odd last bit: a trace of all that was cut off.

    From there a rounding to two bits less, or fewer still, falls as it would have from `x` itself.
    """
    nearest = np.asarray(x, np.float32)
    beyond = np.abs(nearest) > np.abs(x)
    towards_zero = np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest)
    inexact = (nearest != x) & ~np.isnan(x)
    odd: Array = (towards_zero.view(np.uint32) | inexact).view(np.float32)
    return odd


_EDGE = Edge(np.ndarray, lambda x: NAMES.get(x.dtype), widen, narrow, scalars=(np.generic,))


def op(function: Callable[P, R]) -> Callable[P, R]:
    """The edge of every public op: half types (see edge.py), and IEEE arithmetic without warnings."""
    at_the_edge = _EDGE.op(function)

    @wraps(function)
    def without_warnings(*args: P.args, **options: P.kwargs) -> R:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # NaN, Inf have right answers
            return at_the_edge(*args, **options)

    return without_warnings
