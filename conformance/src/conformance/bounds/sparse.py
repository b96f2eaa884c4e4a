"""The bound of sparse attention: that of sdpa over the pairs that the pattern shows."""

from typing import Any

from ..oracle.sparse_patterns import sparse_mask
from ..tensors import Tensors
from .arithmetic import Arithmetic
from .attention import bound_sdpa


def bound_sparse(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op sparse; its mask and counts are exact."""
    attention = {name: inputs[name] for name in ("q", "k", "v")} | {"mask": sparse_mask(config, inputs)}
    errors = bound_sdpa(arithmetic, {"scale": config.get("scale")}, attention)
    return {name: errors[name] for name in ("output", "lse")}
