"""The `split` rung of sdpa: the keys in parts, each attended to on its own, the results merged."""

from . import _rust
from .arrays import Array
from .dropout import Dropout
from .masks import UNMASKED, Mask
from .merge import OutputLse


def split_kv(
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
    splits: int = 4,
) -> OutputLse:
    """Output and log-sum-exp of `sdpa`; same arguments and errors.

    splits: into how many consecutive parts the keys are cut, at least 1.
    """
    return OutputLse(*_rust.split_kv(q, k, v, (mask, bias, scale, softcap, sinks, dropout), splits))
