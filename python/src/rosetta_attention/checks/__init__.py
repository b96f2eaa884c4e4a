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
from .cache import (
    check_append,
    check_attend,
    check_cache,
    check_cache_write,
    check_capacity,
    check_numbers,
    check_room,
    check_sizes,
    check_truncate,
)
from .cache_kinds import (
    FORMATS,
    WHOLE_FORMATS,
    check_attend_held,
    check_cache_rope,
    check_cross_attend,
    check_decode,
    check_evict,
    check_format,
    check_key_groups,
    check_latent_append,
    check_padding,
    check_pages,
    check_reorder,
    check_rollback,
    check_rotating,
    check_shift,
    check_tokens,
)
from .call import FARTHEST, Call, dtype_name, is_integer, is_number
from .eviction import check_policy, check_tracked, check_tracking
from .latent import check_mla
from .linear import check_gated_linear, check_linear
from .other import check_merge, check_scoring, check_structured, check_varlen
from .positions import check_alibi, check_relative_bias, check_rope, check_sinusoidal
from .sparse import check_pattern, check_sparse

__all__ = [
    "FARTHEST",
    "FORMATS",
    "WHOLE_FORMATS",
    "Call",
    "check_alibi",
    "check_append",
    "check_attend",
    "check_attend_held",
    "check_block",
    "check_cache",
    "check_cache_rope",
    "check_cache_write",
    "check_capacity",
    "check_cast",
    "check_cross_attend",
    "check_decode",
    "check_dropout",
    "check_elementwise",
    "check_evict",
    "check_feed_forward",
    "check_format",
    "check_gated_linear",
    "check_key_groups",
    "check_latent_append",
    "check_linear",
    "check_mask",
    "check_merge",
    "check_mha",
    "check_mha_extras",
    "check_mla",
    "check_norm",
    "check_norm_kind",
    "check_numbers",
    "check_packed",
    "check_padding",
    "check_pages",
    "check_pattern",
    "check_policy",
    "check_relative_bias",
    "check_reorder",
    "check_rollback",
    "check_room",
    "check_rope",
    "check_rotating",
    "check_scoring",
    "check_sdpa",
    "check_shift",
    "check_sinusoidal",
    "check_sizes",
    "check_softmax",
    "check_sparse",
    "check_structured",
    "check_tokens",
    "check_tracked",
    "check_tracking",
    "check_transformer",
    "check_truncate",
    "check_varlen",
    "dtype_name",
    "is_integer",
    "is_number",
]
