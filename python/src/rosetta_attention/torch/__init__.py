"""The text of `rosetta_attention` on PyTorch tensors, where it says something else than the one on arrays.

Same names, same steps, same errors; and beside it PyTorch's own fused attention. A result has the dtype and the
device of its inputs, which may have any strides. Every function takes float16, bfloat16, float32 and float64.
"""

from ..dropout import Dropout
from ..errors import (
    AttentionError,
    CapacityExceeded,
    DtypeMismatch,
    InvalidConfig,
    ShapeMismatch,
    Unsupported,
)
from .block import Block, Norm
from .cache import Stats
from .compiled import sdpa_compiled
from .feed_forward import FeedForward
from .fused import sdpa_fused
from .gated_linear import GatedSteps, gated_linear
from .gelu import gelu
from .kv_cache import KVCache
from .layer_norm import LayerNormSteps, layer_norm, layer_norm_steps
from .linear_attention import LinearState, LinearSteps, linear_attention
from .masks import Mask, visible
from .merge import OutputLse, merge
from .mha import MhaSteps, MultiHeadAttention
from .page_pool import PagePool
from .paged_cache import PagedCache
from .rms_norm import rms_norm
from .rope import Rope, RopeSteps, rope, rope_steps
from .rope_scaling import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from .scoring import ScoringSteps, scoring, scoring_steps
from .sdpa import Steps, sdpa, sdpa_steps
from .softmax import SoftmaxSteps, softmax, softmax_lse
from .swiglu import swiglu

__all__ = [
    "AttentionError",
    "Block",
    "CapacityExceeded",
    "Dropout",
    "DtypeMismatch",
    "DynamicScaling",
    "FeedForward",
    "GatedSteps",
    "InvalidConfig",
    "KVCache",
    "LayerNormSteps",
    "LinearScaling",
    "LinearState",
    "LinearSteps",
    "Llama3Scaling",
    "LongRopeScaling",
    "Mask",
    "MhaSteps",
    "MultiHeadAttention",
    "Norm",
    "OutputLse",
    "PagePool",
    "PagedCache",
    "Rope",
    "RopeSteps",
    "ScoringSteps",
    "ShapeMismatch",
    "SoftmaxSteps",
    "Stats",
    "Steps",
    "Unsupported",
    "YarnScaling",
    "gated_linear",
    "gelu",
    "layer_norm",
    "layer_norm_steps",
    "linear_attention",
    "merge",
    "rms_norm",
    "rope",
    "rope_steps",
    "scoring",
    "scoring_steps",
    "sdpa",
    "sdpa_compiled",
    "sdpa_fused",
    "sdpa_steps",
    "softmax",
    "softmax_lse",
    "swiglu",
    "visible",
]
