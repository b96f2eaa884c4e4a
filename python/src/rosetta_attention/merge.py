"""Merging two partial results of attention over different keys into the one over all of them.

    output = (a e^lse_a + b e^lse_b) / (e^lse_a + e^lse_b),   lse = ln(e^lse_a + e^lse_b)

A part that saw no key has lse -inf. It is not read, and changes no bit of the other part.

Source: Dao et al., "FlashAttention", 2022, section 3.1; Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018, section 3.1 (the operation and that it is associative).
"""

from typing import NamedTuple

import numpy as np

from .arrays import Array
from .cast import op
from .checks import check_merge


class OutputLse(NamedTuple):
    """What attention over some of the keys leaves: enough to merge it with attention over the others."""

    output: Array  # (..., Dv)
    lse: Array  # (...)


@op
def merge(a_output: Array, a_lse: Array, b_output: Array, b_lse: Array) -> OutputLse:
    """The attention over the keys of both parts. a_output, b_output: (..., Dv). a_lse, b_lse: (...), natural.

    NaN or +inf in an lse makes its row NaN. Beside half outputs the lse are f32.
    Raises ShapeMismatch, DtypeMismatch.
    """
    check_merge("merge", a_output, a_lse, b_output, b_lse)

    # 1. maximum: two empty parts are shifted by 0, since -inf - -inf is NaN
    top = np.maximum(a_lse, b_lse)  # (...)
    shift = np.where(top == -np.inf, 0, top)  # (...)

    # 2. weights: the share of each part; at most 1, so they cannot overflow
    a, b = np.exp(a_lse - shift), np.exp(b_lse - shift)  # (...)
    total = np.where(top == -np.inf, 1, a + b)  # (...); at least 1
    a, b = (a / total)[..., None], (b / total)[..., None]  # (..., 1)

    # 3. output: by selection, so that an empty part is not read
    a_empty, b_empty = (a_lse == -np.inf)[..., None], (b_lse == -np.inf)[..., None]  # (..., 1)
    both = np.where(a_empty | b_empty, 0, a_output * a + b_output * b)  # (..., Dv)
    output = np.where(a_empty, np.where(b_empty, 0, b_output), np.where(b_empty, a_output, both))  # (..., Dv)
    output = np.where(np.isfinite(shift)[..., None], output, np.nan)  # (..., Dv)

    # 4. log-sum-exp: -inf where both are empty
    lse = np.where(top == np.inf, np.nan, top + np.log(total))  # (...)
    return OutputLse(output, lse)
