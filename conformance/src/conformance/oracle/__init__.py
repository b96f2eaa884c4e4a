"""The answers: float64, plain, one row at a time, and independent of every port.

Where the ports mask whole tables, the oracle walks over queries and *collects* the keys that one query sees, so a
hidden key is never touched at all. It is held against torch in float64, the ONNX vectors, closed forms and mpmath
(`conformance/tests/test_oracle*.py`, `test_onnx_suite.py`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .kv_cache import answer_kv_cache
from .mha import answer_mha
from .sdpa import answer_sdpa
from .softmax import answer_softmax

Tensors = dict[str, np.ndarray]


def answer(op: str, config: dict[str, Any], inputs: Tensors, steps: Sequence[str] | None = None) -> Tensors:
    """Every output that the op can give, in float64. `steps`: for a cache script, the code that each step must give."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        if op == "softmax":
            return answer_softmax(inputs["x"])
        if op == "sdpa":
            return answer_sdpa(config, inputs)
        if op == "mha":
            return answer_mha(config, inputs)
        if op == "kv_cache":
            return answer_kv_cache(config, inputs, steps)
    raise ValueError(f"oracle: op: expected softmax, sdpa, mha or kv_cache, got {op}")
