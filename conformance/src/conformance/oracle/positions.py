"""Positions that are added: sinusoidal tables, ALiBi and the buckets of T5, one number at a time."""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors
from .rope import positions_of


def answer_sinusoidal(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of sinusoidal: output, table (Vaswani et al., "Attention is all you need", 2017, 3.5)."""
    x = inputs["x"].astype(np.float64)
    B, T, C = x.shape
    base = 10000.0 if config.get("base") is None else float(config["base"])
    positions = positions_of(config, inputs, B, T)
    table = np.zeros((B, T, C))
    for b, t, i in np.ndindex(B, T, C // 2):
        angle = int(positions[b, t]) * math.exp(-math.log(base) * (2 * i / C))
        sine, cosine = (i, C // 2 + i) if config.get("halves") else (2 * i, 2 * i + 1)
        table[b, t, sine], table[b, t, cosine] = math.sin(angle), math.cos(angle)
    return {"output": x + table, "table": table}


def answer_alibi(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of alibi: output, slopes, bias (Press et al., "Train short, test long", 2021)."""
    scores = inputs["scores"].astype(np.float64)
    _, H, Tq, Tk = scores.shape
    slopes = np.array(alibi_slopes(H))
    bias = np.zeros((H, Tq, Tk))
    for h, i, j in np.ndindex(H, Tq, Tk):
        bias[h, i, j] = -slopes[h] * abs(i + int(config.get("q_offset") or 0) - j)
    return {"output": scores + bias, "slopes": slopes, "bias": bias}


def alibi_slopes(H: int) -> list[float]:
    """Powers of two: for the largest power m of two up to H at m even steps down to 2^-8, then halfway between."""
    m = 2 ** (H.bit_length() - 1)
    even = [2.0 ** (-8 * n / m) for n in range(1, m + 1)]
    between = [2.0 ** (-8 * (n - 0.5) / m) for n in range(1, m + 1)]
    return (even + between)[:H]


def answer_relative_bias(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of relative_bias: output, buckets (Raffel et al., "Exploring the limits …", 2019)."""
    scores, table = inputs["scores"].astype(np.float64), inputs["table"].astype(np.float64)
    Tq, Tk = scores.shape[2:]
    offset = int(config.get("q_offset") or 0)
    bidirectional = config.get("bidirectional") is not False
    longest = 128 if config.get("max_distance") is None else int(config["max_distance"])
    buckets = np.zeros((Tq, Tk), np.int64)
    for i, j in np.ndindex(Tq, Tk):
        buckets[i, j] = bucket_of(j - i - offset, table.shape[0], longest, bidirectional)
    return {"output": scores + np.moveaxis(table[buckets], -1, 0), "buckets": buckets}


def bucket_of(r: int, count: int, longest: int, bidirectional: bool) -> int:
    """The bucket of a key r positions after the query, in whole numbers only.

    Of n buckets the first e = n div 2 hold one distance each; from bucket e + k on stand the distances d with
    ln(d/e) / ln(longest/e) >= k / (n - e), which is d^(n-e) e^k >= longest^k e^(n-e).
    """
    n = count // 2 if bidirectional else count
    first = n if bidirectional and r > 0 else 0
    d, e = abs(r) if bidirectional else max(-r, 0), n // 2
    if d < e:
        return first + d
    reached = [k for k in range(n - e) if d ** (n - e) * e**k >= longest**k * e ** (n - e)]
    return first + e + reached[-1]
