"""Softmax over the last axis, with its log-sum-exp.

    weights_j = exp(x_j - lse),   lse = log sum_j exp(x_j)

A slot of -inf is *hidden*: its weight is exactly 0. A row with nothing but hidden slots has weights 0 and lse
-inf, never NaN: an empty sum is 0, and only then does a later merge of partial results ignore the row. NaN
and +inf make their row NaN, except for its hidden slots.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, section 2 ("safe softmax").
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check_softmax
from .cast import op


class SoftmaxSteps(NamedTuple):
    """The weights of one call and their log-sum-exp."""

    weights: Tensor  # (..., n)
    lse: Tensor  # (...)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis of `x` (..., n), n >= 0; same shape and dtype.

    Raises ShapeMismatch for rank 0, DtypeMismatch.
    """
    return softmax_lse(x).weights


@op
def softmax_lse(x: Tensor, sink: Tensor | None = None) -> SoftmaxSteps:
    """Softmax and log-sum-exp of the last axis.

    x: (..., n). sink: broadcastable to (...), a logit that joins the sum of its row and has no slot of its
        own.

    Returns weights (..., n) and lse (...), natural logarithm. Raises ShapeMismatch, DtypeMismatch.
    """
    check_softmax(x, sink)
    sink = x.new_tensor(-torch.inf) if sink is None else sink  # adds nothing to a sum

    # 1. maximum: the sink takes part; a row with nothing in it is shifted by 0, since -inf - -inf is NaN
    top = x.amax(dim=-1) if x.shape[-1] > 0 else x.new_full(x.shape[:-1], -torch.inf)  # (...)
    top = torch.maximum(top, sink)
    shift = torch.where(top == -torch.inf, 0, top)  # (...)

    # 2. exponentials: at most 1, so they cannot overflow
    exponentials = torch.exp(x - shift[..., None])  # (..., n)

    # 3. sum: at least 1, except in a row with nothing in it
    total = torch.sum(exponentials, dim=-1) + torch.exp(sink - shift)  # (...)
    total = torch.where(total == 0, 1, total)  # (...)

    # 4. normalise: by selection, so that a hidden slot is 0 even in a row of NaN
    weights = torch.where(x == -torch.inf, 0, exponentials / total[..., None])  # (..., n)

    # 5. log-sum-exp: -inf for a row with nothing in it
    lse = top + torch.log(total)  # (...)
    return SoftmaxSteps(weights, lse)
