"""PyTorch's own fused attention, under the semantics of this package as far as it can express them.

`torch.nn.functional.scaled_dot_product_attention` chooses a kernel that never stores the weights. It agrees
with us on much: a boolean mask selects, a float mask is added, a row without a visible key is 0, lengths of 0
are legal, groups of query heads share a KV head. What differs, measured with torch 2.13 on a CPU:

    softcap, sinks   there are none
    dropout          its random numbers are other ones, which no other language has
    half types       its kernels round to them in between; so they are widened first, like everywhere here
    steps            it returns the output only: no weights, no log-sum-exp
    scale            multiplies the finished dot product, which may overflow before; so q is scaled first
    causal flag      is top-left and excludes a mask; it stands for a plain causal mask, a table for any other
    hidden NaN       reaches the output, as Inf does: masks are added and weights of 0 multiplied
    visible NaN      may vanish: a row of fewer keys than a vector has lanes, all of them NaN, comes out as 0

Letters: B batch, Hq query heads, Hkv key/value heads, Tq and Tk query and key lengths, D and Dv head sizes.
"""

import math

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import scaled_dot_product_attention

from ..checks import check_sdpa
from ..dropout import Dropout
from ..errors import Unsupported
from .cast import op
from .masks import UNMASKED, Mask, visible


@op
def sdpa_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask = UNMASKED,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    """`sdpa` by PyTorch: same arguments, same output (B, Hq, Tq, Dv) up to rounding.

    Raises what `sdpa` raises, and Unsupported for `softcap`, `sinks` and `dropout`, and for `nonfinite`
    where NaN or Inf in the inputs or scores may have gone where they should not.
    """
    check_sdpa(
        "sdpa", q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout
    )
    for feature, value in (("softcap", softcap), ("sinks", sinks), ("dropout", dropout)):
        if value is not None:
            raise Unsupported(feature)
    q = q * (1 / math.sqrt(q.shape[3]) if scale is None else float(scale))  # (B, Hq, Tq, D)
    top_left = bias is None and mask.q_offset is None and mask.causal and _conditions(mask) == 1
    output = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if top_left else _attn_mask(mask, bias, q, k),
        is_causal=top_left,
        scale=1.0,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # (B, Hq, Tq, Dv)
    _refuse_nonfinite(output, q, k, bias)
    return output


def _conditions(mask: Mask) -> int:
    """How many conditions the mask has."""
    return mask.causal + sum(x is not None for x in (mask.keep, mask.window, mask.kv_lengths))


def _attn_mask(mask: Mask, bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Mask and bias in one, broadcasting to (B, Hq, Tq, Tk): boolean, or float with -inf where hidden."""
    if bias is not None:
        bias = _as_rank_4(bias)
    if _conditions(mask) == 0:
        return bias
    B, Hq = (1, 1) if mask.keep is None else _as_rank_4(mask.keep).shape[:2]
    if mask.kv_lengths is not None or isinstance(mask.q_offset, Tensor):
        B = q.shape[0]
    table = visible(mask, B, Hq, q.shape[2], k.shape[2], device=q.device)  # (B or 1, Hq or 1, Tq, Tk)
    return table if bias is None else torch.where(table, bias, -torch.inf)


def _as_rank_4(x: Tensor) -> Tensor:
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _refuse_nonfinite(output: Tensor, q: Tensor, k: Tensor, bias: Tensor | None) -> None:
    """Raises Unsupported unless the output is right as far as NaN and Inf go; cheap where no row is 0."""
    size = vector_norm(output, dim=-1)  # (B, Hq, Tq)
    if ((size > 0) & (size < torch.inf)).all():
        return
    # A row of 0 sees no key, or has lost its NaN. No score exceeds the product of the norms (Cauchy-Schwarz).
    largest = vector_norm(q, dtype=torch.float64) * vector_norm(k, dtype=torch.float64)
    good = output.isfinite().all() & (largest <= torch.finfo(q.dtype).max)
    if bias is not None:
        good &= (bias < torch.inf).all()
    if not good:
        raise Unsupported("nonfinite")
