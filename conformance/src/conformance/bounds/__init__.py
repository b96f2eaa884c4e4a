"""How far a correct answer may be from the exact one, derived from the case itself and never tuned.

Every bound is a forward error bound per element: from the unit roundoff of the compute type, the sizes, and the
magnitudes of that very case. `docs/fixtures.md` has the derivation; the modules follow its steps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..tensors import Tensors, compute_dtype, widen
from .activations import bound_gelu, bound_swiglu
from .arithmetic import Arithmetic
from .attention import bound_sdpa, bound_softmax_op
from .block import bound_block, bound_transformer
from .cache_write import bound_cache_write
from .cast import bound_cast
from .dropout import bound_dropout
from .gated_linear import bound_gated_linear
from .half import round_to_half
from .kv_cache import bound_kv_cache
from .linear_attention import bound_linear_attention
from .merge import bound_merge
from .mha import bound_mha
from .mla import bound_mla
from .norms import bound_layer_norm, bound_rms_norm
from .positions import bound_alibi, bound_relative_bias, bound_sinusoidal
from .rope import bound_rope
from .scoring import bound_scoring
from .sparse import bound_sparse
from .structured import bound_structured
from .varlen import bound_varlen

__all__ = ["BOUNDS", "derive", "round_to_half"]

Bound = Callable[[Arithmetic, dict[str, Any], Tensors], Tensors]

# The bound of every output of an op, from its config and inputs.
BOUNDS: dict[str, Bound] = {
    "softmax": bound_softmax_op,
    "sdpa": bound_sdpa,
    "mha": bound_mha,
    "cast": bound_cast,
    "sinusoidal": bound_sinusoidal,
    "rope": bound_rope,
    "alibi": bound_alibi,
    "relative_bias": bound_relative_bias,
    "scoring": bound_scoring,
    "merge": bound_merge,
    "varlen": bound_varlen,
    "dropout": bound_dropout,
    "linear_attention": bound_linear_attention,
    "gated_linear": bound_gated_linear,
    "sparse": bound_sparse,
    "structured": bound_structured,
    "layer_norm": bound_layer_norm,
    "rms_norm": bound_rms_norm,
    "gelu": bound_gelu,
    "swiglu": bound_swiglu,
    "mla": bound_mla,
    "block": bound_block,
    "transformer": bound_transformer,
    "cache_write": bound_cache_write,
}


def derive(
    op: str, config: dict[str, Any], inputs: Tensors, dtype: str, steps: Sequence[str] | None = None
) -> Tensors:
    """The bound of every output of the op, elementwise. Where an answer is not finite the bound means nothing.

    For a half type it is that of the computation in f32; `round_to_half` adds the rounding of the result.
    """
    arithmetic = Arithmetic.of(compute_dtype(dtype))
    with np.errstate(all="ignore"):
        if op == "kv_cache":
            return bound_kv_cache(arithmetic, config, inputs, steps, dtype)
        if op in BOUNDS:
            return BOUNDS[op](arithmetic, config, widen(inputs))
    raise ValueError(f"bounds: op: expected one of {', '.join(BOUNDS)}, kv_cache, got {op}")
