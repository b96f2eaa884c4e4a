"""The whole family of attention in Rust, on NumPy arrays.

The API is that of `rosetta_attention`, with `sdpa_simd`, `sdpa_threads`, `varlen_simd` and `attend_simd` of caches
beside it. Arrays of any strides are taken as they are, without a copy; results own their memory. The GIL is released
during the work, so Python threads run in parallel; an array that another thread changes meanwhile gives a mixture of
old and new numbers.
"""

from . import eviction
from ._rust import __rustc__, __version__
from .alibi import AlibiSteps, alibi, alibi_slopes, alibi_steps
from .block import Block, Norm
from .blocked import blocked
from .cache import AttendOptions, Cache, Stats
from .cache_file import load, save
from .cache_write import cache_write
from .cast import cast, narrow, widen
from .cross_cache import CrossCache
from .dropout import Dropout, DropoutSteps, dropout, dropout_steps
from .errors import (
    AttentionError,
    CapacityExceeded,
    DtypeMismatch,
    InvalidConfig,
    InvalidFile,
    ShapeMismatch,
    Unsupported,
)
from .feed_forward import FeedForward
from .flash import flash
from .gated_linear import GatedSteps, gated_linear
from .gelu import gelu
from .kivi_cache import KiviCache
from .kv_cache import KVCache
from .latent_cache import LatentCache
from .layer_norm import LayerNormSteps, layer_norm, layer_norm_steps
from .linear_attention import LinearState, LinearSteps, linear_attention
from .linear_chunked import linear_chunked
from .linear_recurrent import linear_recurrent
from .masks import Mask, visible
from .merge import OutputLse, merge
from .mha import MhaSteps, MultiHeadAttention
from .mla import MlaSteps, MultiHeadLatentAttention
from .page_pool import PagePool
from .paged_cache import PagedCache
from .per_head_cache import PerHeadCache
from .philox import philox_words
from .quantise import Codes, quantise, restore
from .quantised_cache import QuantisedCache
from .relative_bias import RelativeBiasSteps, relative_bias, relative_bias_steps
from .rms_norm import rms_norm
from .rope import Rope, RopeSteps, rope, rope_steps
from .rope_scaling import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from .rotating_cache import RotatingCache
from .scoring import ScoringSteps, scoring, scoring_steps
from .sdpa import Steps, sdpa, sdpa_simd, sdpa_steps, sdpa_threads, simd_tiers
from .sinusoidal import SinusoidalSteps, sinusoidal, sinusoidal_steps
from .softmax import SoftmaxSteps, softmax, softmax_lse
from .sparse import SparseSteps, sparse, sparse_mask, sparse_steps
from .sparse_patterns import BigBird, Blocks, Dilated, Fixed, Global, Pattern, Strided, Window
from .split_kv import split_kv
from .structured import StructuredSteps, structured, structured_steps
from .swiglu import swiglu
from .transformer import Transformer, TransformerSteps
from .varlen import varlen, varlen_simd

__all__ = [
    "AlibiSteps",
    "AttendOptions",
    "AttentionError",
    "BigBird",
    "Block",
    "Blocks",
    "Cache",
    "CapacityExceeded",
    "Codes",
    "CrossCache",
    "Dilated",
    "Dropout",
    "DropoutSteps",
    "DtypeMismatch",
    "DynamicScaling",
    "FeedForward",
    "Fixed",
    "GatedSteps",
    "Global",
    "InvalidConfig",
    "InvalidFile",
    "KVCache",
    "KiviCache",
    "LatentCache",
    "LayerNormSteps",
    "LinearScaling",
    "LinearState",
    "LinearSteps",
    "Llama3Scaling",
    "LongRopeScaling",
    "Mask",
    "MhaSteps",
    "MlaSteps",
    "MultiHeadAttention",
    "MultiHeadLatentAttention",
    "Norm",
    "OutputLse",
    "PagePool",
    "PagedCache",
    "Pattern",
    "PerHeadCache",
    "QuantisedCache",
    "RelativeBiasSteps",
    "Rope",
    "RopeSteps",
    "RotatingCache",
    "ScoringSteps",
    "ShapeMismatch",
    "SinusoidalSteps",
    "SoftmaxSteps",
    "SparseSteps",
    "Stats",
    "Steps",
    "Strided",
    "StructuredSteps",
    "Transformer",
    "TransformerSteps",
    "Unsupported",
    "Window",
    "YarnScaling",
    "__rustc__",
    "__version__",
    "alibi",
    "alibi_slopes",
    "alibi_steps",
    "blocked",
    "cache_write",
    "cast",
    "dropout",
    "dropout_steps",
    "eviction",
    "flash",
    "gated_linear",
    "gelu",
    "layer_norm",
    "layer_norm_steps",
    "linear_attention",
    "linear_chunked",
    "linear_recurrent",
    "load",
    "merge",
    "narrow",
    "philox_words",
    "quantise",
    "relative_bias",
    "relative_bias_steps",
    "restore",
    "rms_norm",
    "rope",
    "rope_steps",
    "save",
    "scoring",
    "scoring_steps",
    "sdpa",
    "sdpa_simd",
    "sdpa_steps",
    "sdpa_threads",
    "simd_tiers",
    "sinusoidal",
    "sinusoidal_steps",
    "softmax",
    "softmax_lse",
    "sparse",
    "sparse_mask",
    "sparse_steps",
    "split_kv",
    "structured",
    "structured_steps",
    "swiglu",
    "varlen",
    "varlen_simd",
    "visible",
    "widen",
]
