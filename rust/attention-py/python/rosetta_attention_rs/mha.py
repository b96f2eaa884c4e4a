"""Multi-head attention: four projections around scaled dot-product attention."""

from dataclasses import dataclass
from typing import NamedTuple, Self, Unpack

import numpy as np

from . import _rust
from .arrays import Array, BoolArray, IntArray
from .cache import AttendOptions, KeyValueCache, of_attend
from .dropout import Dropout
from .masks import UNMASKED, Mask
from .rope import Rope


class MhaSteps(NamedTuple):
    """The output of one call with the weights and log-sum-exp of its attention."""

    output: Array  # (B, Tq, Cout)
    weights: Array  # (B, Hq, Tq, Tk)
    lse: Array  # (B, Hq, Tq)
    mean_weights: Array  # (B, Tq, Tk), over the heads


@dataclass(frozen=True, eq=False)
class MultiHeadAttention:
    """The weights of one layer. They are (out, in), y = x Wᵀ + b; heads are consecutive blocks of rows.

    w_q: (Hq·D, C). w_k: (Hkv·D, Cc). w_v: (Hkv·Dv, Cc). w_o: (Cout, Hq·Dv).
    b_q, b_k, b_v, b_o: one value a row of the weights, or None.
    num_kv_heads: None = num_heads.
    q_norm, k_norm: (D,), weights of an RMS norm of each head's queries and keys, or None; qk_norm_eps: its eps.
    rope: rotates queries and keys at the same positions, so for self-attention alone.
    """

    w_q: Array
    w_k: Array
    w_v: Array
    w_o: Array
    num_heads: int
    num_kv_heads: int | None = None
    b_q: Array | None = None
    b_k: Array | None = None
    b_v: Array | None = None
    b_o: Array | None = None
    q_norm: Array | None = None
    k_norm: Array | None = None
    qk_norm_eps: float = 1e-6
    rope: Rope | None = None

    @classmethod
    def packed(
        cls,
        w_qkv: Array,
        w_o: Array,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        packing: str = "blocks",
        b_qkv: Array | None = None,
        b_o: Array | None = None,
        q_norm: Array | None = None,
        k_norm: Array | None = None,
        qk_norm_eps: float = 1e-6,
        rope: Rope | None = None,
    ) -> Self:
        """A layer whose three projections are one: w_qkv ((Hq + 2·Hkv)·D, C), b_qkv one value a row.

        packing: "blocks", all of q, then k, then v; or "heads", for each KV head its G query heads, its key
            head, its value head.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        heads = (num_heads, num_heads if num_kv_heads is None else num_kv_heads)
        w_q, w_k, w_v = _rust.unpack(w_qkv, False, *heads, packing)
        b_q, b_k, b_v = (None,) * 3 if b_qkv is None else _rust.unpack(b_qkv, True, *heads, packing)
        return cls(
            *(w_q, w_k, w_v, w_o, num_heads, num_kv_heads, b_q, b_k, b_v, b_o),
            *(q_norm, k_norm, qk_norm_eps, rope),
        )

    @property
    def kv_heads(self) -> int:
        """Hkv, also where num_kv_heads was left out."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def num_parameters(self) -> int:
        """How many numbers the layer has learned."""
        return sum(x.size for x in vars(self).values() if isinstance(x, np.ndarray))

    def __call__(
        self,
        x: Array,
        context: Array | None = None,
        *,
        mask: Mask = UNMASKED,
        bias: Array | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        positions: IntArray | None = None,
        dropout: Dropout | None = None,
        head_mask: BoolArray | None = None,
    ) -> Array:
        """Attention of `x` (B, Tq, C) over `context` (B, Tk, Cc), itself when absent: (B, Tq, Cout).

        mask, bias, scale, softcap, dropout: as for sdpa.
        positions: int64 (B, T), for rope; None = 0, 1, ... (from the offset of rope on).
        head_mask: bool (Hq,); a head with False contributes 0.

        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.steps(
            *(x, context),
            mask=mask,
            bias=bias,
            scale=scale,
            softcap=softcap,
            positions=positions,
            dropout=dropout,
            head_mask=head_mask,
        ).output

    def steps(
        self,
        x: Array,
        context: Array | None = None,
        *,
        mask: Mask = UNMASKED,
        bias: Array | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        positions: IntArray | None = None,
        dropout: Dropout | None = None,
        head_mask: BoolArray | None = None,
    ) -> MhaSteps:
        """The call with its intermediates; same arguments and errors."""
        options = (mask, bias, scale, softcap, None, dropout)
        return MhaSteps(*_rust.mha(self, x, context, options, positions, head_mask))

    def decode(self, x: Array, cache: KeyValueCache, **options: Unpack[AttendOptions]) -> Array:
        """The next tokens of each row, `x` (B, T, C), T >= 1 or a whole prompt: (B, T, Cout).

        Their keys and values are appended to the cache, of any kind, and they attend causally to all that it then
        holds. options: as for the cache's attend. A layer with rope needs a cache with the same, which turns keys and
        queries; positions are the cache's.

        Raises ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded; then the cache is as it was.
        """
        return _rust.decode(self, x, cache._cache, of_attend(**options))
