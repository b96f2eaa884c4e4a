"""Linear attention whose state forgets (gated) and corrects itself (delta), without feature map and norm.

    linear        S_t = S_(t-1) + k_t v_tᵀ
    gated         S_t = e^decay_t S_(t-1) + k_t v_tᵀ
    delta         S_t = S_(t-1) + k_t (beta_t (v_t - S_(t-1)ᵀ k_t))ᵀ
    gated_delta   both, the decay first
    output_t = (scale · q_t)ᵀ S_t

The decay is a logarithm, one number for each of D or one for all. The delta rule writes what the state gets
wrong about v_t, so a key that comes again replaces its value.

Letters: B batch, Hq query heads, Hkv key/value heads, T positions, D head size, Dv head size of the values.

Sources: Yang et al., "Gated linear attention transformers with hardware-efficient training", 2024; Schlag, Irie
and Schmidhuber, "Linear transformers are secretly fast weight programmers", 2021 (delta); Yang, Kautz and
Hatamizadeh, "Gated delta networks", 2024.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check_gated_linear
from .cast import op
from .linear_attention import read_state


class GatedSteps(NamedTuple):
    """The output of one call, and the state after its last position."""

    output: Tensor  # (B, Hq, T, Dv)
    state: Tensor  # (B, Hkv, D, Dv)


@op
def gated_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rule: str = "linear",
    state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
) -> GatedSteps:
    """Output (B, Hq, T, Dv) of `q` (B, Hq, T, D), `k` (B, Hkv, T, D), `v` (B, Hkv, T, Dv), and the state after it.

    rule: "linear", "gated", "delta" or "gated_delta". state: (B, Hkv, D, Dv), before position 0; None = zeros.
    decay: (B, Hkv, T, D) or (B, Hkv, T, 1), for the gated rules alone. beta: (B, Hkv, T, 1) or (B, 1, T, 1), for
        the delta rules alone. scale: None = 1/sqrt(D).

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    check_gated_linear("gated_linear", q, k, v, rule=rule, state=state, decay=decay, beta=beta, scale=scale)
    B, Hkv, T, D = k.shape
    S = k.new_zeros(B, Hkv, D, v.shape[3]) if state is None else state  # (B, Hkv, D, Dv)
    q = q * (1 / math.sqrt(D) if scale is None else float(scale))  # (B, Hq, T, D)
    output = q.new_empty(*q.shape[:3], v.shape[3])  # (B, Hq, T, Dv)
    for t in range(T):
        k_t, v_t = k[:, :, t, :, None], v[:, :, t, None, :]  # (B, Hkv, D, 1), (B, Hkv, 1, Dv)

        # 1. decay: the rows of the state, each key channel at its own rate
        if decay is not None:
            S = torch.exp(decay[:, :, t, :, None]) * S  # (B, Hkv, D, Dv)

        # 2. correct: what is to be written, less what the state already says about this key
        if beta is not None:
            v_t = beta[:, :, t, :, None] * (v_t - k_t.transpose(2, 3) @ S)  # (B, Hkv, 1, Dv)

        # 3. write: the outer product of key and value
        S = S + k_t * v_t  # (B, Hkv, D, Dv)

        # 4. read: by the queries of the group
        output[:, :, t : t + 1] = read_state(q[:, :, t : t + 1], S)  # (B, Hq, 1, Dv)
    return GatedSteps(output, S)
