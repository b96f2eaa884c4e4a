"""A reset that leaves the last position in the cache."""

import numpy as np
from honest import lie_with, module


def reset(self):
    self._lengths = np.minimum(self._lengths, 1)


module("kv_cache").KVCache.reset = reset
lie_with()
