"""The text of `rosetta_attention` on PyTorch tensors, and PyTorch's own fused attention beside it.

Same names, same steps, same errors. A result has the dtype and the device of its inputs, which may have any
strides.
"""

from ..errors import (
    AttentionError,
    CapacityExceeded,
    DtypeMismatch,
    InvalidConfig,
    ShapeMismatch,
    Unsupported,
)
from .fused import sdpa_fused
from .kv_cache import KVCache
from .masks import Mask, visible
from .mha import MhaSteps, MultiHeadAttention
from .sdpa import Steps, sdpa, sdpa_steps
from .softmax import softmax, softmax_lse

__all__ = [
    "AttentionError",
    "CapacityExceeded",
    "DtypeMismatch",
    "InvalidConfig",
    "KVCache",
    "Mask",
    "MhaSteps",
    "MultiHeadAttention",
    "ShapeMismatch",
    "Steps",
    "Unsupported",
    "sdpa",
    "sdpa_fused",
    "sdpa_steps",
    "softmax",
    "softmax_lse",
    "visible",
]
