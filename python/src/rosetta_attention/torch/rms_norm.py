"""RMS normalisation: each row is divided by its root mean square, then scaled per channel.

    output = x / sqrt(mean(x²) + eps) · weight,   the mean over the n channels

What changes from layer_norm: no mean is subtracted, no bias added.

Source: Zhang and Sennrich, "Root mean square layer normalization", 2019.
"""

import torch
from torch import Tensor

from ..checks import check_norm
from .cast import op


@op
def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """`x` (..., n), n >= 1, normalised over its last axis; same shape. weight: (n,).

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    check_norm("rms_norm", x, weight, None, eps)

    # 1. mean square: of each row
    mean_square = x.square().mean(dim=-1, keepdim=True)  # (..., 1)

    # 2. normalise: eps keeps a row of zeros at 0
    output = x * torch.rsqrt(mean_square + float(eps))  # (..., n)

    # 3. scale: per channel
    return output if weight is None else output * weight  # (..., n)
