"""Multiplies an empty state in with weight 0."""

import numpy as np
from honest import lie_with, module

OutputLse = module("merge").OutputLse


def plain(a, a_lse, b, b_lse):
    with np.errstate(all="ignore"):
        lse = np.logaddexp(a_lse, b_lse)
        w_a, w_b = np.exp(a_lse - lse)[..., None], np.exp(b_lse - lse)[..., None]
        return OutputLse((a * w_a + b * w_b).astype(a.dtype), lse.astype(a_lse.dtype))


lie_with(merge=plain)
