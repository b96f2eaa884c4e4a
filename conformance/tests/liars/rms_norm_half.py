"""Sums the squares of half types in the half type."""

import numpy as np
from honest import lie_with, module

rms_norm = module("rms_norm").rms_norm


def squares_in_half(x, weight=None, *, eps=1e-5):
    output = rms_norm(x, weight, eps=eps)  # and its checks
    if x.dtype.itemsize > 2:
        return output
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        mean = np.mean(x * x, axis=-1, keepdims=True, dtype=x.dtype)
        normal = x / np.sqrt(mean + x.dtype.type(eps))
        return (normal if weight is None else normal * weight).astype(x.dtype)


lie_with(rms_norm=squares_in_half)
