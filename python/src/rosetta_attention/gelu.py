"""GELU: each number times the probability that a standard normal one is below it.

    exact   x/2 · (1 + erf(x / sqrt(2)))
    tanh    x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³)))

Source: Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016.
"""

import math

import numpy as np

from .arrays import Array
from .cast import op
from .checks import Call

_erf = np.frompyfunc(math.erf, 1, 1)  # NumPy has none


@op
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """GELU of every element of `x`. approximate: "none" or "tanh". Raises DtypeMismatch, InvalidConfig."""
    call = Call("gelu")
    call.floats(x=x)
    call.one_of("approximate", approximate, ("none", "tanh"))
    if approximate == "none":
        # 1. exact: by the error function
        erf = np.asarray(_erf(x / math.sqrt(2)), x.dtype)  # (...)
        output = x / 2 * (1 + erf)  # (...)
    else:
        # 2. tanh: an older approximation, off by less than 0.001, that models were trained with
        output = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))  # (...)
    return output
