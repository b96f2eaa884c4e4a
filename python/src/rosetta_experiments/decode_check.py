"""Whether what was timed is right: a run's output at each length, held to the same layer in float64 on the same text.

Runs in float32 feed their own last bits back to themselves, so that their texts may drift apart; but each way has to
make of its own text what exact arithmetic makes of it, up to an error that is bounded here for the very weights and
text. So two ways agree on one text within twice that.

With u half the distance from 1 to the next number, a sum of n products comes out, in any order and with or without
fused multiply-adds, within γ(n) = n u / (1 - n u) times the sum of their magnitudes (Higham, "Accuracy and stability of
numerical algorithms", 2002, section 3.1). Hats are computed values, d what they may be off by, and |â| <= |a| + da:

    projection   a = W x              da = γ(C) |W| |x|
    score        s = q·k / sqrt(D)    ds = (1 + γ(D + 2)) (|q| + dq)·(|k| + dk) / sqrt(D) - |q|·|k| / sqrt(D)
                                      (D terms, and the rounding of 1 / sqrt(D) and of its product with q)
    exponent     s - max s            e = 2 max ds + u max(|s| + ds) · 2
    weight       w                    w r, r = exp(2 e) (1 + γ(T + 9)) - 1: an exponential within 4 u over a sum of T
                                      such ones
    output       o = Σ w v            do = (1 + r) (1 + γ(T)) Σ w (|v| + dv) - Σ w |v|
    projection   y = W o              dy = |W| do + γ(C) |W| (|o| + do)

Letters: T tokens of the text, C width, H heads, D = C / H.
"""

import math
from collections.abc import Sequence

import numpy as np

from rosetta_attention.arrays import Array

from .decode_ways import Run


def error(run: Run, weights: Sequence[Array], heads: int) -> tuple[float, float]:
    """How far an output is from the exact one, and may be: where it comes nearest to that, or is no number."""
    pairs: list[tuple[float, float]] = []
    for n, output in run.outputs.items():
        exact, bound = last_output(run.text[0, :n], weights, heads)
        pairs += zip(np.abs(output[0, 0] - exact).tolist(), bound.tolist(), strict=True)
    return max(pairs, key=lambda pair: pair[0] / pair[1] if pair[0] <= pair[1] else math.inf)  # NaN is beyond


def last_output(text: Array, weights: Sequence[Array], heads: int) -> tuple[Array, Array]:
    """What the layer makes of the last token of a text (T, C), in float64, and dy in the text's type: (C,) each."""
    u = float(np.finfo(text.dtype).eps) / 2

    def gamma(n: int) -> float:
        return n * u / (1 - n * u)

    T, C = text.shape
    x = text.astype(np.float64)
    w_q, w_k, w_v, w_o = (w.astype(np.float64) for w in weights)
    (q, dq), (k, dk), (v, dv) = (
        (_split(a @ w.T, heads), _split(gamma(C) * np.abs(a) @ np.abs(w).T, heads))
        for a, w in ((x[-1:], w_q), (x, w_k), (x, w_v))
    )  # (H, 1, D) and (H, T, D)

    root = np.sqrt(C // heads)
    s = np.sum(q * k, axis=2) / root  # (H, T)
    magnitudes = np.sum((np.abs(q) + dq) * (np.abs(k) + dk), axis=2)  # (H, T)
    ds = ((1 + gamma(C // heads + 2)) * magnitudes - np.sum(np.abs(q * k), axis=2)) / root  # (H, T)
    e = 2 * ds.max(axis=1) + 2 * u * np.max(np.abs(s) + ds, axis=1)  # (H,)
    r = np.exp(2 * e) * (1 + gamma(T + 9)) - 1  # (H,)

    w = np.exp(s - s.max(axis=1, keepdims=True))  # (H, T)
    w /= w.sum(axis=1, keepdims=True)
    o, seen = (np.sum(w[:, :, None] * a, axis=1) for a in (v, np.abs(v)))  # (H, D)
    largest = np.sum(w[:, :, None] * (np.abs(v) + dv), axis=1)  # (H, D)
    do = ((1 + r) * (1 + gamma(T)))[:, None] * largest - seen  # (H, D)

    o, do = o.reshape(C), do.reshape(C)
    return w_o @ o, np.abs(w_o) @ do + gamma(C) * np.abs(w_o) @ (np.abs(o) + do)


def _split(x: Array, heads: int) -> Array:
    """(T, C) to (H, T, D)."""
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)
