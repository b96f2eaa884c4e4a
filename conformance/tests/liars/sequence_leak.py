"""Takes all packed sequences for one."""

import numpy as np
from honest import lie_with, module

varlen = module("varlen").varlen


def one_sequence(q, k, v, cu_seqlens_q, cu_seqlens_k, *, q_offset=None, **options):
    honest = varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, q_offset=q_offset, **options)  # for its errors
    if isinstance(q_offset, np.ndarray) or len(cu_seqlens_q) < 2:
        return honest
    return varlen(q, k, v, cu_seqlens_q[[0, -1]], cu_seqlens_k[[0, -1]], q_offset=q_offset, **options)


lie_with(varlen=one_sequence)
