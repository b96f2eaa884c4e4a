"""Weighs two states by powers of two of their natural log-sum-exp."""

import math

from honest import lie_with, module

merge = module("merge").merge
LN2 = math.log(2)
lie_with(
    merge=lambda a, a_lse, b, b_lse: merge(a, a_lse * a_lse.dtype.type(LN2), b, b_lse * b_lse.dtype.type(LN2))
)
