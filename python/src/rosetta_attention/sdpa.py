"""Scaled dot-product attention, as plain as the formula.

    output = dropout(softmax(mask(softcap(scale · Q Kᵀ) + bias))) · V

Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv query heads for each KV head, Tq and Tk
query and key lengths, D head size, Dv head size of the values.

A slot (one query, one key) is *hidden* when the mask hides it, its bias is -inf, or its score after the bias
is -inf. A hidden slot has weight exactly 0, and nothing of it reaches the result: NaN in its K or V changes
nothing.

Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.1; Ainslie et al., "GQA", 2023
(groups); Gemma 2 report, 2024 (softcap); gpt-oss, 2025 (sinks). The order of the steps is that of ONNX
Attention, opset 25.
"""

import math
from typing import NamedTuple

import numpy as np

from .arrays import Array
from .cast import op
from .checks import check_sdpa
from .dropout import Dropout, dropout_steps
from .heads import products, weighted_sum
from .masks import UNMASKED, Mask, visible
from .softmax import softmax_lse


class Steps(NamedTuple):
    """Every intermediate of one call. `scores`, `capped`, `biased` are before masking, `weights` before dropout."""

    output: Array  # (B, Hq, Tq, Dv)
    weights: Array  # (B, Hq, Tq, Tk)
    lse: Array  # (B, Hq, Tq)
    scores: Array  # (B, Hq, Tq, Tk)
    capped: Array  # (B, Hq, Tq, Tk)
    biased: Array  # (B, Hq, Tq, Tk)


def sdpa(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask = UNMASKED,
    bias: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    dropout: Dropout | None = None,
) -> Array:
    """Attention of `q` (B, Hq, Tq, D) over `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv): (B, Hq, Tq, Dv).

    Query head h reads KV head h // G. Tq, Tk and B may be 0. The dtype of the inputs is that of the result.

    mask: which key each query sees; see Mask.
    bias: added to the scores, right-aligned broadcastable to (B, Hq, Tq, Tk); -inf hides its slot.
    scale: None = 1/sqrt(D); an explicit 0 is 0.
    softcap: c > 0 bounds the scores to (-c, c) by c·tanh(s/c); None = off.
    sinks: (Hq,), a logit per head that joins the denominator of the softmax and carries no value.
    dropout: of the weights, element (b, h, i, j) of (B, Hq, Tq, Tk) in row-major order; None = off.

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return sdpa_steps(
        q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout
    ).output


@op
def sdpa_steps(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask = UNMASKED,
    bias: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    dropout: Dropout | None = None,
) -> Steps:
    """`sdpa` with all its intermediates; same arguments and errors."""
    check_sdpa(
        "sdpa", q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout
    )
    B, Hq, Tq, D = q.shape
    Tk = k.shape[2]
    # Python floats take the dtype of the array they meet; NumPy scalars would widen it.
    scale = 1 / math.sqrt(D) if scale is None else float(scale)
    softcap = None if softcap is None else float(softcap)

    # 1. scores: scale · Q Kᵀ; q is scaled first, so that a sum that fits when scaled cannot overflow
    scores = products(q * scale, k)  # (B, Hq, Tq, Tk)

    # 2. softcap: c · tanh(s / c), before the mask, which it would otherwise make finite
    capped = scores if softcap is None else softcap * np.tanh(scores / softcap)

    # 3. bias: added as it is
    biased = capped if bias is None else capped + bias

    # 4. mask: by selection, never by adding a large number
    shown = visible(mask, B, Hq, Tq, Tk)  # (B, Hq, Tq, Tk)
    if bias is not None:
        shown &= bias != -np.inf
    logits = np.where(shown, biased, -np.inf)  # (B, Hq, Tq, Tk)

    # 5. softmax: over the keys; the sinks join the sum
    sink = None if sinks is None else sinks[:, None]  # (Hq, 1)
    weights, lse = softmax_lse(logits, sink)  # (B, Hq, Tq, Tk), (B, Hq, Tq)

    # 6. dropout: of whole weights, which do not sum to 1 after it; a row of NaN stays one
    thinned = weights  # (B, Hq, Tq, Tk)
    if dropout is not None:
        thinned = np.where(np.isnan(weights), weights, dropout_steps(weights, dropout).output)

    # 7. weighted sum: over the values of the visible keys
    output = weighted_sum(thinned, v, logits != -np.inf)  # (B, Hq, Tq, Dv)
    return Steps(output, weights, lse, scores, capped, biased)
