"""A kernel that computes with base 2 and hands its log-sum-exp out as it is."""

import numpy as np
from honest import lie_with, module

softmax_lse = module("softmax").softmax_lse


def base_two(x):
    weights, lse = softmax_lse(x)
    return weights, lse / x.dtype.type(np.log(2))


lie_with(softmax_lse=base_two)
