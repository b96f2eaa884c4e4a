"""Drops, and leaves what stays as it is."""

import numpy as np
from honest import lie_with, module

module("dropout").scale_kept = lambda x, keep, options: np.where(keep, x, 0)
lie_with()
