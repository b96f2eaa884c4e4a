"""Attention, multi-head attention and the KV cache in NumPy: the readable reference of Rosetta Attention."""

from .errors import AttentionError, CapacityExceeded, DtypeMismatch, InvalidConfig, ShapeMismatch, Unsupported
from .kv_cache import KVCache
from .masks import Mask, visible
from .mha import MhaSteps, MultiHeadAttention
from .sdpa import Steps, sdpa, sdpa_steps
from .softmax import softmax, softmax_lse

__version__ = "0.1.0"

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
    "sdpa_steps",
    "softmax",
    "softmax_lse",
    "visible",
]
