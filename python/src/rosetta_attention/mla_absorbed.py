"""Multi-head latent attention with the up-projections absorbed into queries and output.

    q_n · (W_uk,h c) = (W_uk,hᵀ q_n) · c,   Σ w_j (W_uv,h c_j) = W_uv,h Σ w_j c_j

What changes from mla: all heads attend to the latents themselves, as in multi-query attention with one key of
size R + Dr a token. Decoding reads R + Dr numbers of each past token, where the expanded way makes 2·H·D first.

Letters: B batch, T positions, C model width, H heads, R size of the latent, Dn size of a head's content part,
Dr of its rotary part, Dv head size of the values, Cout width of the output.

Source: "DeepSeek-V2", 2024, section 2.1.2 and appendix C.
"""

from typing import TYPE_CHECKING

import numpy as np

from .arrays import Array
from .heads import linear, merge_heads
from .masks import Mask
from .mla_latent import compress, project_queries, rotate
from .sdpa import sdpa_steps

if TYPE_CHECKING:
    from .mla import MultiHeadLatentAttention


def attend_absorbed(
    layer: "MultiHeadLatentAttention", x: Array, mask: Mask, scale: float
) -> tuple[Array, Array, Array, Array, Array]:
    """Output, weights, lse, latent and rotary key of arguments that are checked already."""
    H, R = layer.num_heads, layer.w_dkv.shape[0]
    w_uk = layer.w_uk.reshape(H, layer.w_uk.shape[0] // H, R)  # (H, Dn, R)
    w_uv = layer.w_uv.reshape(H, layer.w_uv.shape[0] // H, R)  # (H, Dv, R)

    # 1. queries: each head a content part and a rotary part
    q_n, q_r = project_queries(layer, x)  # (B, H, T, Dn), (B, H, T, Dr)

    # 2. latent: all of a token that later tokens need
    latent, k_r = compress(layer, x)  # (B, T, R), (B, T, Dr)

    # 3. rotate: only these parts know positions; one rotary key a token serves all heads
    q_r, k_r = rotate(layer.rope, q_r, k_r)

    # 4. absorb: the key projection into the queries
    q_c = q_n @ w_uk  # (B, H, T, R)

    # 5. attention: one key/value head for all, whose values are the latents
    q = np.concatenate([q_c, q_r], axis=-1)  # (B, H, T, R + Dr)
    k = np.concatenate([latent, k_r], axis=-1)  # (B, T, R + Dr)
    heads = sdpa_steps(q, k[:, None], latent[:, None], mask=mask, scale=scale)  # (B, H, T, R)

    # 6. lift: each head's mean latent to its values
    lifted = heads.output @ w_uv.swapaxes(1, 2)  # (B, H, T, Dv)

    # 7. output projection: mixes the heads
    output = linear(merge_heads(lifted), layer.w_o)  # (B, T, Cout)
    return output, heads.weights, heads.lse, latent, k_r
