"""Scaled dot-product attention: the readable rung, the one with vector instructions, and that on many threads."""

from typing import NamedTuple

from . import _rust
from .arrays import Array
from .dropout import Dropout
from .masks import UNMASKED, Mask
from .merge import OutputLse


class Steps(NamedTuple):
    """Every intermediate of one call. `scores`, `capped` and `biased` are before masking."""

    output: Array  # (B, Hq, Tq, Dv)
    weights: Array  # (B, Hq, Tq, Tk)
    lse: Array  # (B, Hq, Tq)
    scores: Array  # (B, Hq, Tq, Tk)
    capped: Array  # (B, Hq, Tq, Tk)
    biased: Array  # (B, Hq, Tq, Tk)


def sdpa(
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
) -> Array:
    """Attention of `q` (B, Hq, Tq, D) over `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv): (B, Hq, Tq, Dv).

    Query head h reads KV head h // G, G = Hq // Hkv. Tq, Tk and B may be 0. The dtype of the inputs is that of the
    result.

    mask: which key each query sees; see Mask.
    bias: added to the scores, right-aligned broadcastable to (B, Hq, Tq, Tk); -inf hides its slot.
    scale: None = 1/sqrt(D); an explicit 0 is 0.
    softcap: c > 0 bounds the scores to (-c, c) by c·tanh(s/c); None = off.
    sinks: (Hq,), a logit per head that joins the denominator of the softmax and carries no value.
    dropout: of the weights, by their index in (B, Hq, Tq, Tk); `weights` are those before it.

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return _rust.sdpa(q, k, v, (mask, bias, scale, softcap, sinks, dropout))


def sdpa_steps(
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
) -> Steps:
    """`sdpa` with all its intermediates; same arguments and errors."""
    return Steps(*_rust.sdpa_steps(q, k, v, (mask, bias, scale, softcap, sinks, dropout)))


def sdpa_simd(
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
    tier: str | None = None,
) -> OutputLse:
    """`sdpa` with vector instructions, and its log-sum-exp; same arguments and errors, no other intermediates.

    dropout: raises Unsupported, unless it is None.
    tier: "avx512", "avx2", "neon" or "portable". None = the one that the environment variable ROSETTA_SIMD_TIER
        names, else the widest of this machine. Raises Unsupported for one that the machine lacks.
    """
    return OutputLse(*_rust.sdpa_simd(q, k, v, (mask, bias, scale, softcap, sinks, dropout), tier))


def sdpa_threads(
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
    tier: str | None = None,
    threads: int = 1,
) -> OutputLse:
    """`sdpa_simd` on so many threads, at least 1; the same bits for any number of them."""
    options = (mask, bias, scale, softcap, sinks, dropout)
    return OutputLse(*_rust.sdpa_threads(q, k, v, options, tier, threads))


def simd_tiers() -> list[str]:
    """The tiers that this machine has, the widest first; "portable" is always among them."""
    return _rust.simd_tiers()
