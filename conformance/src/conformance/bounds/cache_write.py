"""The bound of the cache write: it moves data, and has no error at all."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .arithmetic import Arithmetic


def bound_cache_write(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op cache_write."""
    return {"output": np.zeros(inputs["cache"].shape)}
