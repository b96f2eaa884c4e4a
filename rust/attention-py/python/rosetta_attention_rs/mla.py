"""Multi-head latent attention: keys and values of all heads come from one small vector a token."""

from dataclasses import dataclass
from typing import NamedTuple

from . import _rust
from .arrays import Array, IntArray
from .rope import ROPE, Rope


class MlaSteps(NamedTuple):
    """The output of one call with its attention and what a cache would hold."""

    output: Array  # (B, T, Cout)
    weights: Array  # (B, H, T, T)
    lse: Array  # (B, H, T)
    latent: Array  # (B, T, R)
    rope_key: Array  # (B, T, Dr)


@dataclass(frozen=True, eq=False)
class MultiHeadLatentAttention:
    """The weights of one layer. They are (out, in); heads are consecutive blocks of rows.

    w_q: (H·(Dn + Dr), C), or (H·(Dn + Dr), Rq) with w_dq. w_dkv: (R, C). w_kr: (Dr, C).
    w_uk: (H·Dn, R). w_uv: (H·Dv, R). w_o: (Cout, H·Dv).
    w_dq: (Rq, C), queries come from a latent vector as well. q_norm, kv_norm: (Rq,), (R,), the latent vectors are
    RMS-normalised with these weights. None = without.
    eps: of those norms. rope: turns the rotary parts.
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
        scale: None = 1/sqrt(Dn + Dr); an explicit 0 is 0.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.steps(x, causal=causal, kv_lengths=kv_lengths, scale=scale).output

    def steps(
        self,
        x: Array,
        *,
        causal: bool = False,
        kv_lengths: IntArray | None = None,
        scale: float | None = None,
    ) -> MlaSteps:
        """The call with its intermediates; same arguments and errors."""
        return MlaSteps(*_rust.mla(self, x, causal, kv_lengths, scale, False))

    def absorbed(
        self,
        x: Array,
        *,
        causal: bool = False,
        kv_lengths: IntArray | None = None,
        scale: float | None = None,
    ) -> MlaSteps:
        """`steps` without expanded keys and values; same arguments, results and errors."""
        return MlaSteps(*_rust.mla(self, x, causal, kv_lengths, scale, True))
