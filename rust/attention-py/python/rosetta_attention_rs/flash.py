"""The `flash` rung of sdpa: one pass over the keys, tile by tile, with a softmax that is corrected on the way."""

from . import _rust
from .arrays import Array
from .dropout import Dropout
from .masks import UNMASKED, Mask
from .merge import OutputLse


def flash(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask = UNMASKED,
    bias: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    dropout: Dropout | None = None,
    block_q: int = 64,
    block_k: int = 64,
) -> OutputLse:
    """Output and log-sum-exp of `sdpa`; same arguments and errors.

    block_q, block_k: how many queries and keys a tile has, at least 1.
    """
    return OutputLse(*_rust.flash(q, k, v, (mask, bias, scale, softcap, sinks, dropout), block_q, block_k))
