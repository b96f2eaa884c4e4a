"""Layer normalisation: each row is brought to mean 0 and variance 1, then scaled and shifted per channel.

    output = (x - mean) / sqrt(var + eps) · weight + bias,   mean and var over the n channels

Source: Ba, Kiros and Hinton, "Layer normalization", 2016.
"""

from typing import NamedTuple

import numpy as np

from .arrays import Array
from .cast import op
from .checks import check_norm


class LayerNormSteps(NamedTuple):
    """The output of one call, the mean of each row, and 1 / sqrt(var + eps)."""

    output: Array  # (..., n)
    mean: Array  # (...)
    inv_std: Array  # (...)


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5
) -> Array:
    """`x` (..., n), n >= 1, normalised over its last axis; same shape. weight, bias: (n,).

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return layer_norm_steps(x, weight, bias, eps=eps).output


@op
def layer_norm_steps(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5
) -> LayerNormSteps:
    """`layer_norm` with its statistics; same arguments and errors."""
    check_norm("layer_norm", x, weight, bias, eps)

    # 1. mean: of each row
    mean = np.mean(x, axis=-1)  # (...)

    # 2. variance: over n, of the centred row, since E[x²] - E[x]² cancels
    centred = x - mean[..., None]  # (..., n)
    variance = np.mean(centred * centred, axis=-1)  # (...)

    # 3. normalise: eps keeps a constant row at 0
    inv_std = 1 / np.sqrt(variance + float(eps))  # (...)
    output = centred * inv_std[..., None]  # (..., n)

    # 4. scale and shift: per channel
    output = output if weight is None else output * weight  # (..., n)
    output = output if bias is None else output + bias  # (..., n)
    return LayerNormSteps(output, mean, inv_std)
