"""Which position of the update each slot of the cache holds afterwards, slot by slot."""

from typing import Any

import numpy as np

from ..tensors import Tensors


def answer_cache_write(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output."""
    cache, update = inputs["cache"], inputs["update"]
    length, count = cache.shape[-2], update.shape[-2]
    output = cache.astype(np.float64)
    for b in range(cache.shape[0]):
        start = int(inputs["write_indices"][b]) if "write_indices" in inputs else 0
        for slot in range(length):
            t = (slot - start) % length if config.get("circular") else slot - start
            if 0 <= t < count:
                output[b, ..., slot, :] = update[b, ..., t, :]
    return {"output": output}
