"""Scores in half precision, under a float32 that only looks like one."""

import numpy as np
from honest import lie_with, module

softmax_lse = module("softmax").softmax_lse


def softmax_half(x, sink=None):
    with np.errstate(all="ignore"):
        return softmax_lse(x.astype(np.float16).astype(x.dtype), sink)


module("sdpa").softmax_lse = softmax_half
lie_with()
