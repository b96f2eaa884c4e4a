"""Multi-head latent attention: keys and values of all heads come out of one small vector a token.

    c = rms_norm(W_dkv x),  k_r = rope(W_kr x)          all that a cache holds: R + Dr numbers a token
    k_h = [W_uk,h c, k_r],  v_h = W_uv,h c,  q_h = [q_n, rope(q_r)]
    output = concat_h(sdpa(q_h, k_h, v_h)) W_oᵀ

Here keys and values are expanded for every head. mla_absorbed gives the same without expanding them.

Letters: B batch, T positions, C model width, H heads, Rq and R sizes of the latents of queries and of keys and
values, Dn size of a head's content part, Dr of its rotary part, Dv head size of the values, Cout width of the
output.

Source: "DeepSeek-V2: a strong, economical, and efficient mixture-of-experts language model", 2024, section 2.1.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .arrays import Array, IntArray
from .cast import op
from .checks import check_mla
from .heads import linear, merge_heads, split_heads
from .masks import Mask
from .mla_absorbed import attend_absorbed
from .mla_latent import compress, project_queries, rotate
from .rope import ROPE, Rope
from .sdpa import sdpa_steps


class MlaSteps(NamedTuple):
    """The output of one call, weights and log-sum-exp of its attention, and what a cache would hold."""

    output: Array  # (B, T, Cout)
    weights: Array  # (B, H, T, T)
    lse: Array  # (B, H, T)
    latent: Array  # (B, T, R)
    rope_key: Array  # (B, T, Dr)


@dataclass(frozen=True, eq=False)
class MultiHeadLatentAttention:
    """The weights of one layer. They are (out, in); heads are consecutive blocks of rows.

    w_q: (H·(Dn + Dr), C, or Rq with w_dq). w_dkv: (R, C). w_kr: (Dr, C). w_uk: (H·Dn, R). w_uv: (H·Dv, R).
    w_o: (Cout, H·Dv).
    w_dq: (Rq, C), a latent for the queries, too. q_norm: (Rq,), kv_norm: (R,), of the latents. None = without.
    eps: of the norms. rope: of the rotary parts.
    """

    w_q: Array
    w_dkv: Array
    w_kr: Array
    w_uk: Array
    w_uv: Array
    w_o: Array
    num_heads: int
    w_dq: Array | None = None
    q_norm: Array | None = None
    kv_norm: Array | None = None
    eps: float = 1e-6
    rope: Rope = ROPE

    def __call__(
        self,
        x: Array,
        *,
        causal: bool = False,
        kv_lengths: IntArray | None = None,
        scale: float | None = None,
    ) -> Array:
        """Self-attention of `x` (B, T, C): (B, T, Cout).

        causal: no query sees a later key. kv_lengths: int64 (B,), how many keys of each row exist.
        scale: None = 1/sqrt(Dn + Dr).
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.steps(x, causal=causal, kv_lengths=kv_lengths, scale=scale).output

    @op
    def steps(
        self,
        x: Array,
        *,
        causal: bool = False,
        kv_lengths: IntArray | None = None,
        scale: float | None = None,
    ) -> MlaSteps:
        """The call with its intermediates; same arguments and errors."""
        check_mla("mla", x, self, causal=causal, kv_lengths=kv_lengths, scale=scale)

        # 1. queries: each head a content part and a rotary part
        q_n, q_r = project_queries(self, x)  # (B, H, T, Dn), (B, H, T, Dr)

        # 2. latent: all of a token that later tokens need
        latent, k_r = compress(self, x)  # (B, T, R), (B, T, Dr)

        # 3. rotate: only these parts know positions; one rotary key a token serves all heads
        q_r, k_r = rotate(self.rope, q_r, k_r)

        # 4. expand: the latent to keys and values of every head
        k_n = split_heads(linear(latent, self.w_uk), self.num_heads)  # (B, H, T, Dn)
        v = split_heads(linear(latent, self.w_uv), self.num_heads)  # (B, H, T, Dv)
        k = np.concatenate([k_n, np.broadcast_to(k_r[:, None], q_r.shape)], axis=-1)  # (B, H, T, Dn + Dr)
        q = np.concatenate([q_n, q_r], axis=-1)  # (B, H, T, Dn + Dr)

        # 5. attention: as with any other keys and values
        mask = Mask(causal=causal, kv_lengths=kv_lengths)
        heads = sdpa_steps(q, k, v, mask=mask, scale=self.score_scale(scale))  # (B, H, T, Dv)

        # 6. output projection: mixes the heads
        output = linear(merge_heads(heads.output), self.w_o)  # (B, T, Cout)
        return MlaSteps(output, heads.weights, heads.lse, latent, k_r)

    @op
    def absorbed(
        self,
        x: Array,
        *,
        causal: bool = False,
        kv_lengths: IntArray | None = None,
        scale: float | None = None,
    ) -> MlaSteps:
        """`steps` without expanding keys and values; same arguments, results and errors."""
        check_mla("mla", x, self, causal=causal, kv_lengths=kv_lengths, scale=scale)
        mask = Mask(causal=causal, kv_lengths=kv_lengths)
        return MlaSteps(*attend_absorbed(self, x, mask, self.score_scale(scale)))

    def score_scale(self, scale: float | None) -> float:
        """1/sqrt(Dn + Dr) where none is given; both ways need that of the expanded keys."""
        return 1 / math.sqrt(self.w_q.shape[0] // self.num_heads) if scale is None else scale
