"""Scaled dot-product attention, query by query over the keys that each one sees."""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors
from .dropout import drop, kept
from .softmax import softmax_row


def answer_sdpa(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of sdpa: output, weights, lse, scores, capped, biased."""
    q, k, v = (inputs[name].astype(np.float64) for name in ("q", "k", "v"))
    B, Hq, Tq, D = q.shape
    _, Hkv, Tk, Dv = v.shape
    shape = (B, Hq, Tq, Tk)
    bias = np.broadcast_to(inputs["bias"].astype(np.float64), shape) if "bias" in inputs else None
    scale = config.get("scale")
    scale = 1 / math.sqrt(D) if scale is None else scale
    softcap = config.get("softcap")

    scores, capped, biased, weights = (np.zeros(shape) for _ in range(4))
    output, lse = np.zeros((B, Hq, Tq, Dv)), np.zeros((B, Hq, Tq))
    keep = None if config.get("dropout") is None else kept(config["dropout"], shape)
    for b, h, i in np.ndindex(B, Hq, Tq):
        kv_head = h // (Hq // Hkv)
        row = (b, h, i)
        scores[row] = np.sum(k[b, kv_head] * (q[row] * scale), axis=-1)
        capped[row] = scores[row] if softcap is None else softcap * np.tanh(scores[row] / softcap)
        biased[row] = capped[row] if bias is None else capped[row] + bias[row]
        shown = visible_keys(config, inputs, b, h, i, shape) & (biased[row] != -np.inf)
        if bias is not None:
            shown &= bias[row] != -np.inf
        keys = np.flatnonzero(shown)
        sink = float(inputs["sinks"][h]) if "sinks" in inputs else None
        weights[(*row, keys)], lse[row] = softmax_row(biased[row][keys], sink)
        shares = weights[row]
        if keep is not None and not np.isnan(weights[row]).any():
            shares = drop(weights[row], keep[row], config["dropout"]["p"])
        if keys.size:
            output[row] = np.sum(shares[keys][:, None] * v[b, kv_head, keys], axis=0)
    return {
        "output": output,
        "weights": weights,
        "lse": lse,
        "scores": scores,
        "capped": capped,
        "biased": biased,
    }


def visible_keys(
    config: dict[str, Any], inputs: Tensors, b: int, h: int, i: int, shape: tuple[int, ...]
) -> np.ndarray:
    """bool (Tk,): the keys that query i of head h in row b may see, every condition intersected."""
    j = np.arange(shape[3])
    offset = int(inputs["q_offset"][b]) if "q_offset" in inputs else int(config.get("q_offset") or 0)
    p = i + offset
    shown = np.ones(shape[3], dtype=bool)
    if config.get("causal"):
        shown &= j <= p
    left, right = config.get("window") or (None, None)
    if left is not None:
        shown &= j >= p - left
    if right is not None:
        shown &= j <= p + right
    if "kv_lengths" in inputs:
        shown &= j < int(inputs["kv_lengths"][b])
    if "mask" in inputs:
        shown &= np.broadcast_to(inputs["mask"], shape)[b, h, i]
    return shown
