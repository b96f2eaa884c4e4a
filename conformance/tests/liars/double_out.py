"""Answers in float64, whatever it was asked in."""

import numpy as np
from honest import lie_with, module

softmax_lse = module("softmax").softmax_lse


def widened(x):
    weights, lse = softmax_lse(x)
    return weights.astype(np.float64), lse.astype(np.float64)


lie_with(softmax=lambda x: widened(x)[0], softmax_lse=widened)
