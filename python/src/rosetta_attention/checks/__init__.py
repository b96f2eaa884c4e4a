"""What a call must satisfy, tested once at the edge; the algorithms behind it trust their arguments.

These checks look only at `.shape`, `.dtype`, `.tolist()` and scalars, so NumPy arrays and torch tensors share
them. Types come before shapes, shapes before values. Every message names the function, the argument, what was
expected and what came.
"""

from .attention import (
    check_cast,
    check_dropout,
    check_mask,
    check_mha,
    check_mha_extras,
    check_packed,
    check_sdpa,
    check_softmax,
)
from .blocks import (
    check_block,
    check_elementwise,
    check_feed_forward,
    check_norm,
    check_norm_kind,
    check_transformer,
)
from .cache import check_append, check_attend, check_cache, check_cache_write, check_room, check_truncate
from .call import Call, dtype_name, is_integer, is_number
from .latent import check_mla
from .linear import check_gated_linear, check_linear
from .other import check_merge, check_scoring, check_structured, check_varlen
from .positions import check_alibi, check_relative_bias, check_rope, check_sinusoidal
from .sparse import check_pattern, check_sparse

__all__ = [
    "Call",
    "check_alibi",
    "check_append",
    "check_attend",
    "check_block",
    "check_cache",
    "check_cache_write",
    "check_cast",
    "check_dropout",
    "check_elementwise",
    "check_feed_forward",
    "check_gated_linear",
    "check_linear",
    "check_mask",
    "check_merge",
    "check_mha",
    "check_mha_extras",
    "check_mla",
    "check_norm",
    "check_norm_kind",
    "check_packed",
    "check_pattern",
    "check_relative_bias",
    "check_room",
    "check_rope",
    "check_scoring",
    "check_sdpa",
    "check_sinusoidal",
    "check_softmax",
    "check_sparse",
    "check_structured",
    "check_transformer",
    "check_truncate",
    "check_varlen",
    "dtype_name",
    "is_integer",
    "is_number",
]
