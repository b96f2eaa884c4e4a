"""Attention over sequences of different lengths that are packed one after the other, without padding."""

from . import _rust
from .arrays import Array, IntArray
from .merge import OutputLse


def varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: IntArray,
    cu_seqlens_k: IntArray,
    *,
    causal: bool = False,
    q_offset: int | IntArray | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> OutputLse:
    """Attention of `q` (Nq, Hq, D) over `k` (Nk, Hkv, D) and `v` (Nk, Hkv, Dv), each sequence apart.

    cu_seqlens_q, cu_seqlens_k: int64 (S + 1,), from 0 to Nq and Nk, never falling.
    causal, window: as in Mask, positions counted in each sequence. q_offset: of its query 0, one for all or
    int64 (S,). scale, softcap: as for sdpa.

    Returns output (Nq, Hq, Dv) and lse (Nq, Hq). Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    options = (causal, q_offset, window, scale, softcap)
    return OutputLse(*_rust.varlen(q, k, v, (cu_seqlens_q, cu_seqlens_k), options))


def varlen_simd(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: IntArray,
    cu_seqlens_k: IntArray,
    *,
    causal: bool = False,
    q_offset: int | IntArray | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    tier: str | None = None,
) -> OutputLse:
    """`varlen` with vector instructions; same arguments and errors. tier: as for sdpa_simd."""
    options = (causal, q_offset, window, scale, softcap)
    return OutputLse(*_rust.varlen_simd(q, k, v, (cu_seqlens_q, cu_seqlens_k), options, tier))
