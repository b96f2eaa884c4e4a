"""SwiGLU: a gate, smooth between 0 and a, for every element of b.

    output = a · sigmoid(alpha · a) · b

Source: Shazeer, "GLU variants improve transformer", 2020; alpha = 1.702 stands for GELU in some models.
"""

import torch
from torch import Tensor

from ..checks import Call, check_elementwise, is_number
from .cast import op


@op
def swiglu(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    """The gate of `a` times `b`, two tensors of one shape. Raises ShapeMismatch, DtypeMismatch, InvalidConfig."""
    check_elementwise("swiglu", a, b)
    Call("swiglu").config(is_number(alpha), "alpha", "a finite number", alpha)

    # 1. gate: a where alpha · a is large, 0 where it is very negative
    gate = a * torch.sigmoid(float(alpha) * a)  # (...)

    # 2. multiply: element by element
    return gate * b  # (...)
