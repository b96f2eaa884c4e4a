"""Multi-head attention: four projections around scaled dot-product attention.

    output = concat_h(sdpa(X W_qᵀ, C W_kᵀ, C W_vᵀ)_h) W_oᵀ,   C = context, X itself for self-attention

Letters: B batch, Tq and Tk query and key lengths, C model width, Cc width of the context, Hq query heads, Hkv
key/value heads, D head size, Dv head size of the values, Cout width of the output.

Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2; Ainslie et al., "GQA", 2023.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..checks import check_mha
from .masks import UNMASKED, Mask
from .sdpa import sdpa_steps


class MhaSteps(NamedTuple):
    """The output of one call with the weights and log-sum-exp of its attention."""

    output: Tensor  # (B, Tq, Cout)
    weights: Tensor  # (B, Hq, Tq, Tk)
    lse: Tensor  # (B, Hq, Tq)


@dataclass(frozen=True, eq=False)
class MultiHeadAttention:
    """The weights of one layer. They are (out, in), y = x Wᵀ + b; heads are consecutive blocks of rows.

    w_q: (Hq·D, C). w_k: (Hkv·D, Cc). w_v: (Hkv·Dv, Cc). w_o: (Cout, Hq·Dv).
    b_q, b_k, b_v, b_o: one value a row of the weights, or None.
    num_kv_heads: None = num_heads.
    """

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor
    num_heads: int
    num_kv_heads: int | None = None
    b_q: Tensor | None = None
    b_k: Tensor | None = None
    b_v: Tensor | None = None
    b_o: Tensor | None = None

    @property
    def kv_heads(self) -> int:
        """Hkv, also where num_kv_heads was left out."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    def __call__(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask = UNMASKED,
        bias: Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Attention of `x` (B, Tq, C) over `context` (B, Tk, Cc), itself when absent: (B, Tq, Cout).

        mask, bias, scale, softcap: as for sdpa. Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.steps(x, context, mask=mask, bias=bias, scale=scale, softcap=softcap).output

    def steps(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask = UNMASKED,
        bias: Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> MhaSteps:
        """The call with its intermediates; same arguments and errors."""
        context = x if context is None else context
        check_mha("mha", x, context, self)

        # 1. project: rows of x to queries, rows of the context to keys and values
        q = _linear(x, self.w_q, self.b_q)  # (B, Tq, Hq·D)
        k = _linear(context, self.w_k, self.b_k)  # (B, Tk, Hkv·D)
        v = _linear(context, self.w_v, self.b_v)  # (B, Tk, Hkv·Dv)

        # 2. split heads: consecutive blocks of channels, then heads before positions
        q = _split_heads(q, self.num_heads)  # (B, Hq, Tq, D)
        k = _split_heads(k, self.kv_heads)  # (B, Hkv, Tk, D)
        v = _split_heads(v, self.kv_heads)  # (B, Hkv, Tk, Dv)

        # 3. attention: every head on its own
        heads = sdpa_steps(q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap)  # (B, Hq, Tq, Dv)

        # 4. merge heads: positions before heads again, heads side by side
        merged = _merge_heads(heads.output)  # (B, Tq, Hq·Dv)

        # 5. output projection: mixes the heads
        output = _linear(merged, self.w_o, self.b_o)  # (B, Tq, Cout)
        return MhaSteps(output, heads.weights, heads.lse)


def _linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """y = x Wᵀ + b: (B, T, in) to (B, T, out)."""
    y = x @ w.T
    return y if b is None else y + b


def _split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, H·n) to (B, H, T, n)."""
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).transpose(1, 2)


def _merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, n) to (B, T, H·n)."""
    B, H, T, n = x.shape
    return x.transpose(1, 2).reshape(B, T, H * n)
