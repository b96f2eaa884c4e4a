"""The bounds of a cache script: each attend is an sdpa over what is held; a read has no error at all."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..oracle.kv_cache import attends
from .arithmetic import Arithmetic
from .attention import bound_sdpa

Tensors = dict[str, np.ndarray]


def bound_kv_cache(
    arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors, steps: Sequence[str] | None
) -> Tensors:
    """The op kv_cache, for the steps that must be ok."""
    bounds: Tensors = {}
    for attention in attends(config, inputs, steps):
        step = attention["step"]
        if step["do"] == "read":
            bounds |= {f"{step['out']}.{name}": np.zeros(x.shape) for name, x in attention["inputs"].items()}
            continue
        errors = bound_sdpa(arithmetic, attention["config"], attention["inputs"])
        bounds[step["out"]] = errors["output"]
        if step.get("lse"):
            bounds[step["lse"]] = errors["lse"]
    return bounds
