"""Merging two partial results of attention over different keys into the one over all of them.

    output = (a e^lse_a + b e^lse_b) / (e^lse_a + e^lse_b),   lse = ln(e^lse_a + e^lse_b)

A part that saw no key has lse -inf. It is not read, and changes no bit of the other part.

Source: Dao et al., "FlashAttention", 2022, section 3.1; Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018, section 3.1 (the operation and that it is associative).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check_merge
from .cast import op


class OutputLse(NamedTuple):
    """What attention over some of the keys leaves: enough to merge it with attention over the others."""

    output: Tensor  # (..., Dv)
    lse: Tensor  # (...)


@op
def merge(a_output: Tensor, a_lse: Tensor, b_output: Tensor, b_lse: Tensor) -> OutputLse:
    """The attention over the keys of both parts. a_output, b_output: (..., Dv). a_lse, b_lse: (...), natural.

    NaN or +inf in an lse makes its row NaN. Beside half outputs the lse are f32.
    Raises ShapeMismatch, DtypeMismatch.
    """
    check_merge("merge", a_output, a_lse, b_output, b_lse)

    # 1. maximum: two empty parts are shifted by 0, since -inf - -inf is NaN
    top = torch.maximum(a_lse, b_lse)  # (...)
    shift = torch.where(top == -torch.inf, 0, top)  # (...)

    # 2. weights: the share of each part; at most 1, so they cannot overflow
    a, b = torch.exp(a_lse - shift), torch.exp(b_lse - shift)  # (...)
    total = torch.where(top == -torch.inf, 1, a + b)  # (...); at least 1
    a, b = (a / total)[..., None], (b / total)[..., None]  # (..., 1)

    # 3. output: by selection, so that an empty part is not read
    a_empty, b_empty = (a_lse == -torch.inf)[..., None], (b_lse == -torch.inf)[..., None]  # (..., 1)
    output = a_output * a + b_output * b  # (..., Dv)
    output = torch.where(a_empty, b_output, torch.where(b_empty, a_output, output))  # (..., Dv)
    output = torch.where(a_empty & b_empty, 0, output)  # (..., Dv)
    output = torch.where(torch.isfinite(shift)[..., None], output, torch.nan)  # (..., Dv)

    # 4. log-sum-exp: -inf where both are empty
    lse = torch.where(top == torch.inf, torch.nan, top + torch.log(total))  # (...)
    return OutputLse(output, lse)
