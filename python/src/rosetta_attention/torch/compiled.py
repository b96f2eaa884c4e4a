"""The readable text through `torch.compile`: what a compiler makes of it, as a rung for the bench.

    compiled = torch.compile(scores, mask, softmax and weighted sum of sdpa)

What changes from `naive`: inductor fuses everything between the two matrix products into C++ loops, so that the
table of scores is passed over a few times in place of a dozen. What stays: the table is there, and every key is
computed, hidden or not; the search for values that are not finite has no fixed graph and is left out.

Gained, times as fast as the readable text, one thread, f32: prefill of 256 tokens 3.6, causal 3.4, decode 9; torch's
own kernel is 1.3 to 8 times as fast again (`ROSETTA_TORCH_COMPILED=1 conformance bench --ops sdpa --ports torch`).

Every combination of options, and every size that is 1 or equals another, is a graph of its own, and each takes
10 seconds or more and a C++ compiler to be made. So this rung is for large plain calls only: a scale, a top-left
causal mask, and nothing else. Everything else is Unsupported `compiled`.

Letters: B batch, Hq query heads, Hkv key/value heads, Tq and Tk query and key lengths, D and Dv head sizes.
"""

import math
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..checks import check_sdpa
from ..errors import Unsupported
from .heads import group_heads, products
from .masks import UNMASKED, Mask, visible
from .merge import OutputLse
from .softmax import softmax_lse

LEAST_SCORES = 1 << 15  # of a call: a smaller one is not worth a graph
COMPILERS = ("c++", "g++", "clang++")


def can_compile() -> bool:
    """Whether there is a C++ compiler, without which inductor makes nothing for a CPU."""
    return any(shutil.which(name) for name in COMPILERS)


def sdpa_compiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask = UNMASKED,
    scale: float | None = None,
    **options: Any,
) -> OutputLse:
    """Output and log-sum-exp of `sdpa` where nothing but a scale and a plain causal mask is asked for, in f32.

    The first call of a kind compiles. Raises what `sdpa` raises, then Unsupported: `compiled` for any other call
    and without a compiler, `nonfinite` where NaN or Inf may have gone where they should not.
    """
    absent = dict.fromkeys(("bias", "softcap", "sinks", "dropout"))
    check_sdpa("sdpa", q, k, v, mask=mask, scale=scale, **(absent | options))
    others = (mask.keep, mask.window, mask.kv_lengths, mask.q_offset, *options.values())
    scores = math.prod(q.shape[:3]) * k.shape[2]
    plain = all(x is None for x in others) and q.dtype == torch.float32
    if not plain or scores < LEAST_SCORES or not can_compile():
        raise Unsupported("compiled")
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the compiler looks through
        output, lse = _compiled()(q, k, v, scale, mask.causal)  # (B, Hq, Tq, Dv), (B, Hq, Tq)
    if not output.isfinite().all():
        raise Unsupported("nonfinite")
    return OutputLse(output, lse)


@cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor]]:
    """Made on the first call, as that alone loads the compiler."""
    return torch.compile(_attend, fullgraph=True, dynamic=True)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """The steps of sdpa that a plain call has."""
    B, Hq, Tq, _ = q.shape
    _, Hkv, Tk, Dv = v.shape
    logits = products(q * scale, k)  # (B, Hq, Tq, Tk)
    if causal:
        logits = torch.where(visible(Mask(causal=True), B, Hq, Tq, Tk), logits, -torch.inf)
    weights, lse = softmax_lse(logits)  # (B, Hq, Tq, Tk), (B, Hq, Tq)
    output = group_heads(weights, Hkv) @ v[:, :, None]  # (B, Hkv, G, Tq, Dv)
    return output.reshape(B, Hq, Tq, Dv), lse
