"""Multi-head attention: four projections around scaled dot-product attention."""

from dataclasses import dataclass
from typing import NamedTuple

from . import _rust
from .arrays import Array
from .masks import UNMASKED, Mask


class MhaSteps(NamedTuple):
    """The output of one call with the weights and log-sum-exp of its attention."""

    output: Array  # (B, Tq, Cout)
    weights: Array  # (B, Hq, Tq, Tk)
    lse: Array  # (B, Hq, Tq)


@dataclass(frozen=True, eq=False)
class MultiHeadAttention:
    """The weights of one layer. They are (out, in), y = x Wᵀ + b; heads are consecutive blocks of rows.

    w_q: (Hq·D, C). w_k: (Hkv·D, Cc). w_v: (Hkv·Dv, Cc). w_o: (Cout, Hq·Dv).
    b_q, b_k, b_v, b_o: one value a row of the weights, or None.
    num_kv_heads: None = num_heads.
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

    @property
    def kv_heads(self) -> int:
        """Hkv, also where num_kv_heads was left out."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    def __call__(
        self,
        x: Array,
        context: Array | None = None,
        *,
        mask: Mask = UNMASKED,
        bias: Array | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Array:
        """Attention of `x` (B, Tq, C) over `context` (B, Tk, Cc), itself when absent: (B, Tq, Cout).

        mask, bias, scale, softcap: as for sdpa. Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.steps(x, context, mask=mask, bias=bias, scale=scale, softcap=softcap).output

    def steps(
        self,
        x: Array,
        context: Array | None = None,
        *,
        mask: Mask = UNMASKED,
        bias: Array | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> MhaSteps:
        """The call with its intermediates; same arguments and errors."""
        return MhaSteps(*_rust.mha(self, x, context, (mask, bias, scale, softcap, None)))
