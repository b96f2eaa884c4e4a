"""GELU: each number times the probability that a standard normal one is below it.

    exact   x/2 · (1 + erf(x / sqrt(2)))
    tanh    x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³)))

Source: Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from ..checks import Call
from .cast import op


@op
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU of every element of `x`. approximate: "none" or "tanh". Raises DtypeMismatch, InvalidConfig."""
    call = Call("gelu")
    call.floats(x=x)
    call.one_of("approximate", approximate, ("none", "tanh"))

    # 1. exact: by the error function; torch's own may be NaN at infinity
    if approximate == "none":
        return x / 2 * (1 + torch.erf(x / math.sqrt(2)))  # (...)

    # 2. tanh: an older approximation, off by less than 0.001, that models were trained with
    return functional.gelu(x, approximate="tanh")  # (...)
