"""Attention, multi-head attention and the KV cache in Rust, on NumPy arrays.

The API is that of `rosetta_attention`, and `sdpa_simd` beside it. Arrays of any strides are taken as they are,
without a copy; results own their memory. The GIL is released during the work, so Python threads run in parallel;
an array that another thread changes meanwhile gives a mixture of old and new numbers.
"""

from ._rust import __rustc__, __version__
from .errors import AttentionError, CapacityExceeded, DtypeMismatch, InvalidConfig, ShapeMismatch, Unsupported
from .kv_cache import KVCache
from .masks import Mask, visible
from .mha import MhaSteps, MultiHeadAttention
from .sdpa import OutputLse, Steps, sdpa, sdpa_simd, sdpa_steps, simd_tiers
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
    "OutputLse",
    "ShapeMismatch",
    "Steps",
    "Unsupported",
    "__rustc__",
    "__version__",
    "sdpa",
    "sdpa_simd",
    "sdpa_steps",
    "simd_tiers",
    "softmax",
    "softmax_lse",
    "visible",
]
