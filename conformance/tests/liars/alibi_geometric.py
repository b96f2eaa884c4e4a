"""One geometric series of slopes, also where the heads are no power of two."""

import numpy as np
from honest import lie_with, module

module("alibi").alibi_slopes = lambda num_heads: 2.0 ** (-8 * np.arange(1, num_heads + 1) / num_heads)
lie_with()
