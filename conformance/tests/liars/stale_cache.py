"""A reset that leaves the last position in the cache."""

import numpy as np
from honest import lie_with, module


def reset(self):
    slots = self._slots
    slots.lengths = slots.next = np.minimum(slots.lengths, 1)


module("kv_cache").KVCache.reset = reset
lie_with()
