"""A cast has one right answer."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .arithmetic import Arithmetic


def bound_cast(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op cast: no error at all."""
    return {"output": np.zeros(inputs["x"].shape)}
