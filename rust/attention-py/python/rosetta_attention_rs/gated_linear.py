"""Linear attention without a norm whose memory can forget (gates) and correct itself (delta rule)."""

from typing import NamedTuple

from . import _rust
from .arrays import Array


class GatedSteps(NamedTuple):
    """The output of one call, and the memory after its last token."""

    output: Array  # (B, Hq, T, Dv)
    state: Array  # (B, Hkv, D, Dv)


def gated_linear(
    q: Array,
    k: Array,
    v: Array,
    *,
    rule: str = "linear",
    state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    scale: float | None = None,
) -> GatedSteps:
    """One token after the other: `q` (B, Hq, T, D) reads what `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv) wrote.

    rule: "linear", "gated" (takes decay), "delta" (takes beta) or "gated_delta" (takes both).
    state: (B, Hkv, D, Dv), the memory before the first token; None = zeros.
    decay: (B, Hkv, T, D) or (B, Hkv, T, 1), the logarithm of what is kept.
    beta: (B, Hkv, T, 1) or (B, 1, T, 1), how much of the correction is written.
    scale: None = 1/sqrt(D); an explicit 0 is 0.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return GatedSteps(*_rust.gated_linear(q, k, v, rule, (state, decay, beta), scale))
