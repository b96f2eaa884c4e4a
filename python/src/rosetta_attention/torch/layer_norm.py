"""Layer normalisation: each row is brought to mean 0 and variance 1, then scaled and shifted per channel.

    output = (x - mean) / sqrt(var + eps) · weight + bias,   mean and var over the n channels

Source: Ba, Kiros and Hinton, "Layer normalization", 2016.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check_norm
from .cast import op


class LayerNormSteps(NamedTuple):
    """The output of one call, the mean of each row, and 1 / sqrt(var + eps)."""

    output: Tensor  # (..., n)
    mean: Tensor  # (...)
    inv_std: Tensor  # (...)


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> Tensor:
    """`x` (..., n), n >= 1, normalised over its last axis; same shape. weight, bias: (n,).

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return layer_norm_steps(x, weight, bias, eps=eps).output


@op
def layer_norm_steps(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> LayerNormSteps:
    """`layer_norm` with its statistics; same arguments and errors."""
    check_norm("layer_norm", x, weight, bias, eps)

    # 1. mean: of each row
    mean = x.mean(dim=-1)  # (...)

    # 2. variance: over n, of the centred row, since E[x²] - E[x]² cancels
    centred = x - mean[..., None]  # (..., n)
    variance = centred.square().mean(dim=-1)  # (...)

    # 3. normalise: eps keeps a constant row at 0
    inv_std = torch.rsqrt(variance + float(eps))  # (...)
    output = centred * inv_std[..., None]  # (..., n)

    # 4. scale and shift: per channel
    output = output if weight is None else output * weight  # (..., n)
    output = output if bias is None else output + bias  # (..., n)
    return LayerNormSteps(output, mean, inv_std)
