"""How alike a query and a key are: the four score functions of the literature, each before a softmax.

    additive   w_v · tanh(W_q q + W_k k)     a small network; query and key may have different sizes
    dot        q · k
    general    (q W) · k                     a learned bilinear form
    scaled     (q / sqrt(D)) · k             what sdpa does

Letters: B batch, Tq and Tk query and key lengths, Dq and Dk sizes of a query and a key, Dv of a value, A width of
the small network.

Sources: Bahdanau, Cho and Bengio, "Neural machine translation by jointly learning to align and translate",
2015 (additive); Luong, Pham and Manning, "Effective approaches to attention-based neural machine translation",
2015, section 3.1 (dot, general); Vaswani et al., 2017 (scaled).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..checks import check_scoring
from .cast import op
from .heads import weighted_sum
from .masks import Mask, visible
from .softmax import softmax_lse


class ScoringSteps(NamedTuple):
    """The output of one call, the weights, and the scores before the mask."""

    output: Tensor  # (B, Tq, Dv)
    weights: Tensor  # (B, Tq, Tk)
    scores: Tensor  # (B, Tq, Tk)


def scoring(
    form: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    w_q: Tensor | None = None,
    w_k: Tensor | None = None,
    w_v: Tensor | None = None,
    w: Tensor | None = None,
    kv_lengths: Tensor | None = None,
) -> Tensor:
    """Attention of `q` (B, Tq, Dq) over `k` (B, Tk, Dk) and `v` (B, Tk, Dv): (B, Tq, Dv).

    form: "additive", "dot", "general" or "scaled". w_q (A, Dq), w_k (A, Dk), w_v (A,): for additive alone.
    w (Dq, Dk): for general alone. kv_lengths: int64 (B,), how many keys of each row exist.

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return scoring_steps(form, q, k, v, w_q=w_q, w_k=w_k, w_v=w_v, w=w, kv_lengths=kv_lengths).output


@op
def scoring_steps(
    form: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    w_q: Tensor | None = None,
    w_k: Tensor | None = None,
    w_v: Tensor | None = None,
    w: Tensor | None = None,
    kv_lengths: Tensor | None = None,
) -> ScoringSteps:
    """`scoring` with its weights and scores; same arguments and errors."""
    check_scoring("scoring", form, q, k, v, w_q=w_q, w_k=w_k, w_v=w_v, w=w, kv_lengths=kv_lengths)
    (B, Tq, D), Tk = q.shape, k.shape[1]

    # 1. scores: by the form
    if w_q is not None and w_k is not None and w_v is not None:
        hidden = torch.tanh(linear(q, w_q)[:, :, None] + linear(k, w_k)[:, None])  # (B, Tq, Tk, A)
        scores = hidden @ w_v  # (B, Tq, Tk)
    elif w is not None:
        scores = q @ w @ k.transpose(1, 2)  # (B, Tq, Tk)
    else:
        scores = q * (1 / math.sqrt(D) if form == "scaled" else 1.0) @ k.transpose(1, 2)  # (B, Tq, Tk)

    # 2. mask: keys beyond the length of their row
    shown = visible(Mask(kv_lengths=kv_lengths), B, 1, Tq, Tk, device=q.device)[:, 0]  # (B, Tq, Tk)
    logits = torch.where(shown, scores, -torch.inf)  # (B, Tq, Tk)

    # 3. softmax: over the keys
    weights, _ = softmax_lse(logits)  # (B, Tq, Tk)

    # 4. weighted sum: over the values of the visible keys, as with one head
    seen = logits != -torch.inf  # (B, Tq, Tk)
    output = weighted_sum(weights[:, None], v[:, None], seen[:, None])[:, 0]  # (B, Tq, Dv)
    return ScoringSteps(output, weights, scores)
