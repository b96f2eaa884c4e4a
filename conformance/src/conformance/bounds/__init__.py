"""How far a correct answer may be from the exact one, derived from the case itself and never tuned.

Every bound is a forward error bound per element: from the unit roundoff of the compute type, the sizes, and the
magnitudes of that very case. `docs/fixtures.md` has the derivation; the modules follow its steps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .arithmetic import Arithmetic
from .attention import bound_mha, bound_sdpa, bound_softmax_op
from .kv_cache import bound_kv_cache

Tensors = dict[str, np.ndarray]


def derive(
    op: str, config: dict[str, Any], inputs: Tensors, dtype: str, steps: Sequence[str] | None = None
) -> Tensors:
    """The bound of every output of the op, elementwise. Where an answer is not finite the bound means nothing."""
    arithmetic = Arithmetic.of(dtype)
    with np.errstate(all="ignore"):
        if op == "softmax":
            return bound_softmax_op(arithmetic, inputs["x"])
        if op == "sdpa":
            return bound_sdpa(arithmetic, config, inputs)
        if op == "mha":
            return bound_mha(arithmetic, config, inputs)
        if op == "kv_cache":
            return bound_kv_cache(arithmetic, config, inputs, steps)
    raise ValueError(f"bounds: op: expected softmax, sdpa, mha or kv_cache, got {op}")
