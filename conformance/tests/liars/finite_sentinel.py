"""Hides by a large negative number: `finite_sentinel.py -1e9`, or `min` for the smallest of the type."""

import sys

import numpy as np
from honest import lie_with, module

softmax_lse = module("softmax").softmax_lse


def softmax_with_sentinel(x, sink=None):
    sentinel = np.finfo(x.dtype).min if sys.argv[1] == "min" else x.dtype.type(sys.argv[1])
    return softmax_lse(np.where(x == -np.inf, sentinel, x), sink)


module("sdpa").softmax_lse = softmax_with_sentinel
lie_with()
