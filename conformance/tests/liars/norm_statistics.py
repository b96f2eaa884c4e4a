"""Another variance: in `one_pass` over x and x², `unbiased` over n - 1, or with the eps `outside` of the root."""

import sys

import numpy as np
from honest import lie_with, module


@module("cast").op
def other_statistics(x, weight=None, bias=None, *, eps=1e-5):
    module("checks").check_norm("layer_norm", x, weight, bias, eps)
    mean = np.mean(x, axis=-1)
    variance = np.var(x, axis=-1)
    if sys.argv[1] == "one_pass":
        variance = np.mean(x * x, axis=-1) - mean * mean
    elif sys.argv[1] == "unbiased":
        variance = variance * (x.shape[-1] / max(x.shape[-1] - 1, 1))
    inv_std = 1 / (np.sqrt(variance) + eps) if sys.argv[1] == "outside" else 1 / np.sqrt(variance + eps)
    output = (x - mean[..., None]) * inv_std[..., None]
    output = output if weight is None else output * weight
    output = output if bias is None else output + bias
    return module("layer_norm").LayerNormSteps(*(y.astype(x.dtype) for y in (output, mean, inv_std)))


lie_with(layer_norm_steps=other_statistics)
