"""Rotary position embedding: pairs of channels are turned by an angle that grows with the position.

    (a, b) -> (a cos θ - b sin θ, a sin θ + b cos θ),   θ = p · base^(-2i/R) for pair i at position p

The product of a query turned by p and a key turned by j depends on p - j alone. The pair is (i, i + R/2), or
(2i, 2i + 1) when interleaved; a model trained with one is garbage with the other. Channels from R on pass.

Letters: B batch, H heads, T positions, D head size, R rotated channels, P rows of a table.

Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021, section 3.4.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..checks import Call, check_rope, dtype_name
from .cast import op
from .rope_scaling import Scaling, rope_frequencies


@dataclass(frozen=True)
class Rope:
    """How to rotate.

    base: the slowest pair turns about once in 2π·base positions. interleaved: pairs of neighbours.
    rotary_dim: R, even; None = all of D. offset: position of the first row. scaling: of the frequencies.
    """

    base: float = 10000.0
    interleaved: bool = False
    rotary_dim: int | None = None
    offset: int = 0
    scaling: Scaling | None = None


ROPE = Rope()


class RopeSteps(NamedTuple):
    """The output of one call, and the cosines and sines that it applied."""

    output: Tensor  # (B, H, T, D)
    cos: Tensor  # (B, T, R/2)
    sin: Tensor  # (B, T, R/2)


def rope(
    x: Tensor,
    options: Rope = ROPE,
    *,
    positions: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> Tensor:
    """`x` (B, H, T, D) rotated, each row by its position: (B, H, T, D).

    positions: int64 (B, T); None = options.offset, options.offset + 1, ...
    cos, sin: tables (P, R/2) indexed by position, which take the place of base and scaling.

    Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    return rope_steps(x, options, positions=positions, cos=cos, sin=sin).output


@op
def rope_steps(
    x: Tensor,
    options: Rope = ROPE,
    *,
    positions: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> RopeSteps:
    """`rope` with the cosines and sines; same arguments and errors."""
    call = Call("rope")
    call.floats(x=x, cos=cos, sin=sin)
    call.rank("x", x, "(B, H, T, D)")
    check_rope("rope", options, x.shape, dtype_name(x), positions=positions, cos=cos, sin=sin)
    B, _, T, D = x.shape
    R = D if options.rotary_dim is None else options.rotary_dim
    consecutive = (options.offset + torch.arange(T, device=x.device)).expand(B, T)  # (B, T)
    p = consecutive if positions is None else positions  # (B, T)
    if cos is None or sin is None:
        # 1. frequencies: in radians a position, from 1 down to almost 1 / base
        frequencies, factor = rope_frequencies(options.base, R, device=x.device), 1.0  # (R/2,)

        # 2. scaling: for longer texts than were trained on; each row of a batch by its own length
        if options.scaling is not None:
            lengths = pad(p, (1, 0), value=-1).amax(dim=1, keepdim=True).double() + 1  # (B, 1)
            frequencies = options.scaling.frequencies(options.base, R, lengths)  # (R/2,) or (B or 1, R/2)
            factor = options.scaling.attention

        # 3. angles: in float64, as f32 cannot tell large ones apart; cosine and sine are rounded once
        angles = p[:, :, None] * frequencies.reshape(-1, 1, R // 2)  # (B, T, R/2)
        cos = (factor * torch.cos(angles)).to(x.dtype)  # (B, T, R/2)
        sin = (factor * torch.sin(angles)).to(x.dtype)  # (B, T, R/2)
    else:
        cos, sin = cos[p], sin[p]  # (B, T, R/2)

    # 4. rotate: each pair in its plane, the same way in every head; the rest passes
    c, s = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    first, second = _pairs(R, options.interleaved)
    a, b = x[..., first], x[..., second]  # (B, H, T, R/2)
    output = x.clone()  # (B, H, T, D)
    output[..., first] = a * c - b * s
    output[..., second] = a * s + b * c
    return RopeSteps(output, cos, sin)


def _pairs(rotary_dim: int, interleaved: bool) -> tuple[slice, slice]:
    """Where the first and the second channels of all pairs are."""
    if interleaved:
        return slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)
    return slice(0, rotary_dim // 2), slice(rotary_dim // 2, rotary_dim)
