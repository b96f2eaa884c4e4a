"""A running maximum that starts at 0: a row of very negative scores underflows to nothing."""

import numpy as np
from honest import lie_with, module


def softmax_from_zero(x, sink=None):
    module("checks").check_softmax(x, sink)
    with np.errstate(all="ignore"):
        top = np.max(x, axis=-1, initial=0)
        exponentials = np.exp(x - top[..., None])
        total = np.sum(exponentials, axis=-1)
        weights = np.where(total[..., None] == 0, 0, exponentials / np.where(total == 0, 1, total)[..., None])
        return np.where(x == -np.inf, 0, weights).astype(x.dtype), top + np.log(total)


lie_with(softmax=lambda x: softmax_from_zero(x)[0], softmax_lse=softmax_from_zero)
