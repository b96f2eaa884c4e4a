"""Narrows f64 by way of f32, and so rounds twice."""

import numpy as np
from honest import lie_with, module

cast = module("cast")


def cast_twice(x, to):
    return cast.cast(x.astype(np.float32) if x.dtype == np.float64 and to != "f64" else x, to)


lie_with(cast=cast_twice)
