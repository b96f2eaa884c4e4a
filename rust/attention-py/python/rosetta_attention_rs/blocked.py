"""sdpa in blocks of queries and keys that stay in the cache."""

from . import _rust
from .arrays import Array
from .masks import UNMASKED, Mask
from .merge import OutputLse


def blocked(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask = UNMASKED,
    bias: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    dropout: None = None,
) -> OutputLse:
    """Output and log-sum-exp of `sdpa`; same arguments and errors, except that dropout is Unsupported."""
    return OutputLse(*_rust.blocked(q, k, v, (mask, bias, scale, softcap, sinks, dropout)))
