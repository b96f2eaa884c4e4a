"""Linear attention: a feature map in the place of the softmax, so that the past fits into a matrix."""

from typing import NamedTuple

from . import _rust
from .arrays import Array


class LinearState(NamedTuple):
    """What linear attention remembers of the keys that it has seen."""

    state: Array  # (B, Hkv, D, Dv), the sum of f(k) vᵀ
    norm: Array  # (B, Hkv, D), the sum of f(k)


class LinearSteps(NamedTuple):
    """The output of one call, and the memory with all its keys in it."""

    output: Array  # (B, Hq, Tq, Dv)
    state: LinearState


def linear_attention(
    q: Array, k: Array, v: Array, *, causal: bool = False, state: LinearState | None = None
) -> LinearSteps:
    """Linear attention of `q` (B, Hq, Tq, D) over `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv).

    causal: query i sees the keys up to i, which takes Tq = Tk. state: what was seen before these keys; every query
    sees all of it. A query whose denominator is 0 has output 0.
    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    output, *memory = _rust.linear_attention(q, k, v, causal, state)
    return LinearSteps(output, LinearState(*memory))
