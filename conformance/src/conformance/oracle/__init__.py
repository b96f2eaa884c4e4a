"""The answers: float64, plain, one row at a time, and independent of every port.

Where the ports mask whole tables, the oracle walks over queries and *collects* the keys that one query sees, so a
hidden key is never touched at all. It is held against torch in float64, the ONNX vectors, closed forms and mpmath
(`conformance/tests/test_oracle*.py`, `test_onnx_suite.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..tensors import Tensors, widen
from .activations import answer_gelu, answer_swiglu
from .block import answer_block
from .cache_write import answer_cache_write
from .cast import answer_cast
from .dropout import answer_dropout
from .gated_linear import answer_gated_linear
from .kv_cache import answer_kv_cache
from .linear_attention import answer_linear_attention
from .merge import answer_merge
from .mha import answer_mha
from .mla import answer_mla
from .norms import answer_layer_norm, answer_rms_norm
from .positions import answer_alibi, answer_relative_bias, answer_sinusoidal
from .rope import answer_rope
from .scoring import answer_scoring
from .sdpa import answer_sdpa
from .softmax import answer_softmax
from .sparse import answer_sparse
from .structured import answer_structured
from .transformer import answer_transformer
from .varlen import answer_varlen

Oracle = Callable[[dict[str, Any], Tensors], Tensors]

# Every output of an op from its config and inputs. A cache script knows its codes as well, and stands apart.
ORACLES: dict[str, Oracle] = {
    "softmax": answer_softmax,
    "sdpa": answer_sdpa,
    "mha": answer_mha,
    "cast": answer_cast,
    "sinusoidal": answer_sinusoidal,
    "rope": answer_rope,
    "alibi": answer_alibi,
    "relative_bias": answer_relative_bias,
    "scoring": answer_scoring,
    "merge": answer_merge,
    "varlen": answer_varlen,
    "dropout": answer_dropout,
    "linear_attention": answer_linear_attention,
    "gated_linear": answer_gated_linear,
    "sparse": answer_sparse,
    "structured": answer_structured,
    "layer_norm": answer_layer_norm,
    "rms_norm": answer_rms_norm,
    "gelu": answer_gelu,
    "swiglu": answer_swiglu,
    "cache_write": answer_cache_write,
    "mla": answer_mla,
    "block": answer_block,
    "transformer": answer_transformer,
}


def answer(op: str, config: dict[str, Any], inputs: Tensors, steps: Sequence[str] | None = None) -> Tensors:
    """Every output that the op can give, in float64. `steps`: for a cache script, the code that each step must give."""
    with np.errstate(all="ignore"):
        if op == "kv_cache":
            return answer_kv_cache(config, inputs, steps)
        if op in ORACLES:
            return ORACLES[op](config, widen(inputs))
    raise ValueError(f"oracle: op: expected one of {', '.join(ORACLES)}, kv_cache, got {op}")
