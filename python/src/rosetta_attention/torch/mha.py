"""Multi-head attention: four projections around scaled dot-product attention.

    output = concat_h(sdpa(X W_qᵀ, C W_kᵀ, C W_vᵀ)_h) W_oᵀ,   C = context, X itself for self-attention

Letters: B batch, Tq and Tk query and key lengths, C model width, Cc width of the context, Hq query heads, Hkv
key/value heads, G = Hq / Hkv, D head size, Dv head size of the values, Cout width of the output.

Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2; Ainslie et al., "GQA", 2023; Henry et
al., "Query-key normalization for transformers", 2020; Michel et al., "Are sixteen heads really better than
one?", 2019 (pruning).
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, Unpack

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..checks import check_decode, check_mha, check_mha_extras, check_packed
from ..dropout import Dropout
from .cache import AttendOptions, KeyValueCache
from .cast import op
from .heads import merge_heads, split_heads
from .masks import UNMASKED, Mask
from .rms_norm import rms_norm
from .rope import Rope, rope
from .sdpa import sdpa_steps


class MhaSteps(NamedTuple):
    """The output of one call with the weights and log-sum-exp of its attention."""

    output: Tensor  # (B, Tq, Cout)
    weights: Tensor  # (B, Hq, Tq, Tk)
    lse: Tensor  # (B, Hq, Tq)
    mean_weights: Tensor  # (B, Tq, Tk), over the heads


@dataclass(frozen=True, eq=False)
class MultiHeadAttention:
    """The weights of one layer. They are (out, in), y = x Wᵀ + b; heads are consecutive blocks of rows.

    w_q: (Hq·D, C). w_k: (Hkv·D, Cc). w_v: (Hkv·Dv, Cc). w_o: (Cout, Hq·Dv).
    b_q, b_k, b_v, b_o: one value a row of the weights, or None.
    num_kv_heads: None = num_heads.
    q_norm, k_norm: (D,), weights of an RMS norm of each head's queries and keys, or None; qk_norm_eps: its eps.
    rope: rotates queries and keys at the same positions, so for self-attention alone.
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
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    qk_norm_eps: float = 1e-6
    rope: Rope | None = None

    @classmethod
    def packed(
        cls,
        w_qkv: Tensor,
        w_o: Tensor,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        packing: str = "blocks",
        b_qkv: Tensor | None = None,
        b_o: Tensor | None = None,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        qk_norm_eps: float = 1e-6,
        rope: Rope | None = None,
    ) -> Self:
        """A layer whose three projections are one: w_qkv ((Hq + 2·Hkv)·D, C), b_qkv one value a row.

        packing: "blocks", all of q, then k, then v; or "heads", for each KV head its G query heads, its key
            head, its value head.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_packed("mha", w_qkv, b_qkv, num_heads, kv_heads, packing)
        w_q, w_k, w_v = _unpack(w_qkv, num_heads, kv_heads, packing)
        b_q, b_k, b_v = (None,) * 3 if b_qkv is None else _unpack(b_qkv, num_heads, kv_heads, packing)
        return cls(
            *(w_q, w_k, w_v, w_o, num_heads, num_kv_heads, b_q, b_k, b_v, b_o),
            q_norm=q_norm,
            k_norm=k_norm,
            qk_norm_eps=qk_norm_eps,
            rope=rope,
        )

    @property
    def kv_heads(self) -> int:
        """Hkv, also where num_kv_heads was left out."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def num_parameters(self) -> int:
        """How many numbers the layer has learned; for a given width, as many with one head as with many."""
        return sum(x.numel() for x in vars(self).values() if isinstance(x, Tensor))

    def __call__(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask = UNMASKED,
        bias: Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        positions: Tensor | None = None,
        dropout: Dropout | None = None,
        head_mask: Tensor | None = None,
    ) -> Tensor:
        """Attention of `x` (B, Tq, C) over `context` (B, Tk, Cc), itself when absent: (B, Tq, Cout).

        mask, bias, scale, softcap, dropout: as for sdpa.
        positions: int64 (B, T), for rope; None = 0, 1, ... (from the offset of rope on).
        head_mask: bool (Hq,); a head with False contributes 0.

        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.steps(
            x,
            context,
            mask=mask,
            bias=bias,
            scale=scale,
            softcap=softcap,
            positions=positions,
            dropout=dropout,
            head_mask=head_mask,
        ).output

    def _project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, Hq, Tq, D) of x, keys (B, Hkv, Tk, D) and values (B, Hkv, Tk, Dv) of the source."""
        # 1. project: rows of x to queries, rows of the context to keys and values
        q = linear(x, self.w_q, self.b_q)  # (B, Tq, Hq·D)
        k = linear(source, self.w_k, self.b_k)  # (B, Tk, Hkv·D)
        v = linear(source, self.w_v, self.b_v)  # (B, Tk, Hkv·Dv)

        # 2. split heads: consecutive blocks of channels, then heads before positions
        q = split_heads(q, self.num_heads)  # (B, Hq, Tq, D)
        k = split_heads(k, self.kv_heads)  # (B, Hkv, Tk, D)
        v = split_heads(v, self.kv_heads)  # (B, Hkv, Tk, Dv)

        # 3. normalise: queries and keys of each head, so that no score grows without bound
        q = q if self.q_norm is None else rms_norm(q, self.q_norm, eps=self.qk_norm_eps)  # (B, Hq, Tq, D)
        k = k if self.k_norm is None else rms_norm(k, self.k_norm, eps=self.qk_norm_eps)  # (B, Hkv, Tk, D)
        return q, k, v

    @op
    def steps(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask = UNMASKED,
        bias: Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        positions: Tensor | None = None,
        dropout: Dropout | None = None,
        head_mask: Tensor | None = None,
    ) -> MhaSteps:
        """The call with its intermediates; same arguments and errors."""
        source = x if context is None else context  # (B, Tk, Cc)
        check_mha("mha", x, source, self)
        check_mha_extras("mha", x, context, self, positions=positions, head_mask=head_mask)

        q, k, v = self._project(x, source)  # (B, Hq, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, Dv)

        # 4. rotate: queries and keys by their positions
        if self.rope is not None:
            q, k = (rope(heads, self.rope, positions=positions) for heads in (q, k))

        # 5. attention: every head on its own
        heads = sdpa_steps(q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, dropout=dropout)

        # 6. prune: by selection, so that a head left out is 0 whatever it holds
        kept = heads.output  # (B, Hq, Tq, Dv)
        if head_mask is not None:
            kept = torch.where(head_mask[:, None, None], kept, 0)

        # 7. merge heads: positions before heads again, heads side by side
        merged = merge_heads(kept)  # (B, Tq, Hq·Dv)

        # 8. output projection: mixes the heads
        output = linear(merged, self.w_o, self.b_o)  # (B, Tq, Cout)
        return MhaSteps(output, heads.weights, heads.lse, heads.weights.mean(dim=1))

    def decode(self, x: Tensor, cache: KeyValueCache, **options: Unpack[AttendOptions]) -> Tensor:
        """The next tokens of each row, `x` (B, T, C), T >= 1 or a whole prompt: (B, T, Cout).

        Their keys and values are appended to the cache, of any kind, and they attend causally to all that it then
        holds. options: as for the cache's attend. A layer with rope needs a cache with the same, which turns keys
        and queries; positions are the cache's.

        Raises ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded; then the cache is as it was.
        """
        options["mask"] = replace(options.get("mask", UNMASKED), causal=True)
        check_mha("decode", x, x, self)
        check_mha_extras("decode", x, None, self, positions=None, head_mask=None)
        check_decode("decode", x, self, cache, **options)
        return self._decode(x, cache, **options)

    @op
    def _decode(self, x: Tensor, cache: KeyValueCache, **options: Any) -> Tensor:
        """`decode` of what is checked already; half types are wide in here, but not in the cache."""
        q, k, v = self._project(x, x)
        cache.append(k.to(cache.dtype), v.to(cache.dtype))
        return linear(merge_heads(cache.attend_checked(q, **options).output), self.w_o, self.b_o)


def _unpack(x: Tensor, num_heads: int, num_kv_heads: int, packing: str) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of q, of k and of v."""
    Hq, Hkv = num_heads, num_kv_heads
    D = x.shape[0] // (Hq + 2 * Hkv)
    if packing == "blocks":
        q, k, v = torch.split_with_sizes(x, [Hq * D, Hkv * D, Hkv * D])
    else:
        G = Hq // Hkv
        groups = x.reshape(Hkv, G + 2, D, *x.shape[1:])  # (Hkv, G + 2, D, ...)
        q, k, v = (part.flatten(0, 2) for part in torch.split_with_sizes(groups, [G, 1, 1], dim=1))
    return q, k, v
