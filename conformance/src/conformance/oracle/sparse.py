"""Sparse attention: the pattern's predicate decides over every pair, then sdpa query by query."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .sdpa import answer_sdpa
from .sparse_patterns import sparse_mask


def answer_sparse(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output, lse, mask, visited."""
    mask = sparse_mask(config, inputs)
    attention = {name: inputs[name] for name in ("q", "k", "v")} | {"mask": mask}
    steps = answer_sdpa({"scale": config.get("scale")}, attention)
    return {
        "output": steps["output"],
        "lse": steps["lse"],
        "mask": mask,
        "visited": mask.sum(axis=1).astype(np.int64),
    }
