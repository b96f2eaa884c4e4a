"""What both ways through multi-head latent attention share: queries, the latent, and the rotary key.

Letters as in mla.
"""

from typing import TYPE_CHECKING

import numpy as np

from .arrays import Array
from .heads import linear, split_heads
from .rms_norm import rms_norm
from .rope import Rope, rope

if TYPE_CHECKING:
    from .mla import MultiHeadLatentAttention


def project_queries(layer: "MultiHeadLatentAttention", x: Array) -> tuple[Array, Array]:
    """Each head's content part (B, H, T, Dn) and rotary part (B, H, T, Dr), through a latent if there is one."""
    if layer.w_dq is not None:
        x = linear(x, layer.w_dq)  # (B, T, Rq)
        x = x if layer.q_norm is None else rms_norm(x, layer.q_norm, eps=layer.eps)
    q = split_heads(linear(x, layer.w_q), layer.num_heads)  # (B, H, T, Dn + Dr)
    q_n, q_r = np.split(q, [layer.w_uk.shape[0] // layer.num_heads], axis=-1)
    return q_n, q_r


def compress(layer: "MultiHeadLatentAttention", x: Array) -> tuple[Array, Array]:
    """All that a cache would hold: the latent (B, T, R), and the rotary key (B, T, Dr) before it is turned."""
    latent = linear(x, layer.w_dkv)  # (B, T, R)
    latent = latent if layer.kv_norm is None else rms_norm(latent, layer.kv_norm, eps=layer.eps)
    return latent, linear(x, layer.w_kr)


def rotate(options: Rope, q_r: Array, k_r: Array) -> tuple[Array, Array]:
    """The rotary parts turned by their positions: of the queries, and of the one key (B, T, Dr) for all heads."""
    return rope(q_r, options), rope(k_r[:, None], options)[:, 0]
