"""Attention over sequences of different lengths that lie packed one after the other, without padding.

    sequence s owns rows cu_seqlens[s] .. cu_seqlens[s + 1] - 1, and attends to itself alone

Letters: S sequences, Nq and Nk rows of all of them, Hq query heads, Hkv key/value heads, D head size, Dv head
size of the values, n rows of one sequence.

Source: the `varlen` interface of FlashAttention (Dao, 2023), where "cu" stands for cumulative.
"""

import numpy as np

from .arrays import Array, IntArray
from .cast import op
from .checks import check_varlen
from .masks import Mask
from .merge import OutputLse
from .sdpa import sdpa_steps


@op
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
    check_varlen(
        "varlen",
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        mask=Mask(causal=causal, window=window, q_offset=q_offset),
        scale=scale,
        softcap=softcap,
    )
    output = np.empty((*q.shape[:2], v.shape[2]), q.dtype)  # (Nq, Hq, Dv)
    lse = np.empty(q.shape[:2], q.dtype)  # (Nq, Hq)
    offsets = np.broadcast_to(0 if q_offset is None else q_offset, len(cu_seqlens_q) - 1)  # (S,)
    for s, offset in enumerate(offsets.tolist()):
        # 1. slice: a batch of one, heads before positions
        rows = slice(cu_seqlens_q[s], cu_seqlens_q[s + 1])
        columns = slice(cu_seqlens_k[s], cu_seqlens_k[s + 1])
        q_s, k_s, v_s = (x.swapaxes(0, 1)[None] for x in (q[rows], k[columns], v[columns]))  # (1, H, n, D)

        # 2. attend: as if there were no other sequence
        mask = Mask(causal=causal, window=window, q_offset=offset)
        steps = sdpa_steps(q_s, k_s, v_s, mask=mask, scale=scale, softcap=softcap)

        # 3. place: back in its rows
        output[rows] = steps.output[0].swapaxes(0, 1)  # (n, Hq, Dv)
        lse[rows] = steps.lse[0].swapaxes(0, 1)  # (n, Hq)
    return OutputLse(output, lse)
