"""The bounds of softmax and sdpa: the pipeline once more, in arithmetic that carries its error along."""

import math
from typing import Any

import numpy as np

from ..oracle.dropout import kept
from ..oracle.sdpa import visible_keys
from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded, transpose
from .dropout import propagate_drop
from .softmax import KEY_TILE, bound_softmax

# Roundings of one term of a score beside those of the sum: the scale itself (sqrt, division, rounding to the type) and
# the product with q.
SCALE_ROUNDINGS = 4
SPLITS = 4  # into so many parts split_kv cuts the keys where nothing else is asked


def bound_softmax_op(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op softmax: exact logits, so only its own rounding."""
    x = inputs["x"]
    result = bound_softmax(arithmetic, arithmetic.exact(x), x != -np.inf, None)
    return {"output": result.weights.error, "lse": result.lse.error}


def bound_sdpa(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op sdpa: exact q, k and v."""
    q, k, v = (arithmetic.exact(inputs[name]) for name in ("q", "k", "v"))
    steps = propagate_sdpa(arithmetic, config, inputs, q, k, v)
    return {name: step.error for name, step in steps.items()}


def propagate_sdpa(
    arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors, q: Bounded, k: Bounded, v: Bounded
) -> dict[str, Bounded]:
    """Every step of sdpa on q (B, Hq, Tq, D), k (B, Hkv, Tk, D), v (B, Hkv, Tk, Dv) that may be uncertain.

    Where q and k are among the inputs, what is infinite in them hides its slot, or meets the cap, as in the oracle.
    """
    B, Hq, Tq, D = q.value.shape
    _, Hkv, Tk, _ = k.value.shape
    group = Hq // max(Hkv, 1)
    k, v = (Bounded(*(np.repeat(x, group, axis=1) for x in y)) for y in (k, v))
    scale = config.get("scale")
    scale = 1 / math.sqrt(D) if scale is None else scale

    scores = arithmetic.matmul(arithmetic.scale(q, scale), transpose(k), SCALE_ROUNDINGS)
    capped, infinite = scores, infinite_scores(inputs, group, scale, scores.value.shape)
    if config.get("softcap") is not None:
        met = Bounded(
            np.where(infinite == 0, scores.value, infinite), np.where(infinite == 0, scores.error, 0)
        )
        capped, infinite = arithmetic.softcap(met, config["softcap"]), np.zeros_like(infinite)
    shown = np.zeros((B, Hq, Tq, Tk), dtype=bool)
    for b, h, i in np.ndindex(B, Hq, Tq):
        shown[b, h, i] = visible_keys(config, inputs, b, h, i, (B, Hq, Tq, Tk))
    biased, limit = capped, infinite
    if "bias" in inputs:
        bias = np.broadcast_to(inputs["bias"], (B, Hq, Tq, Tk))
        biased = arithmetic.add(capped, arithmetic.exact(bias))
        limit = infinite + bias
        shown &= bias != -np.inf
    shown &= limit != -np.inf
    sink = (
        np.broadcast_to(inputs["sinks"].astype(np.float64)[:, None], (B, Hq, Tq))
        if "sinks" in inputs
        else None
    )
    weights, lse = bound_softmax(arithmetic, biased, shown, sink, count_rescales(config, Tk))
    shares, dropout = weights, config.get("dropout")
    if dropout is not None:
        shares = propagate_drop(arithmetic, weights, kept(dropout, shown.shape), dropout["p"])
    # An online softmax rescales its sum of values with the sum of weights, so the weights' bound covers it.
    output = arithmetic.matmul(shares, v)
    output = Bounded(output.value, np.where(shown.any(axis=-1, keepdims=True), output.error, 0))
    return {
        "output": output,
        "weights": weights,
        "lse": lse,
        "scores": scores,
        "capped": capped,
        "biased": biased,
    }


def infinite_scores(inputs: Tensors, group: int, scale: float, shape: tuple[int, ...]) -> np.ndarray:
    """(B, Hq, Tq, Tk): inf or -inf where an infinity in q or k makes the score so, else 0."""
    if all(np.isfinite(inputs[name]).all() for name in ("q", "k") if name in inputs):
        return np.zeros(shape)
    q = inputs["q"].astype(np.float64) * scale
    k = np.repeat(inputs["k"].astype(np.float64), group, axis=1)
    scores = np.sum(q[:, :, :, None] * k[:, :, None], axis=-1)
    return np.where(np.isinf(scores), scores, 0)


def count_rescales(config: dict[str, Any], Tk: int) -> int:
    """An online softmax rescales once a tile of keys, of the size asked for; and merging once for each part of them."""
    tile = min(KEY_TILE, config.get("block_k") or KEY_TILE)
    return -(-Tk // tile) + min(config.get("splits") or SPLITS, Tk)
