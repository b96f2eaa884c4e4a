"""The bound of multi-head latent attention, for expanded and for absorbed weights alike.

A score is Σ_d Σ_r q_d W_dr c_r whichever of the two sums comes first, and each term passes through at most Dn + R
roundings of them. The expanded key W c is given the roundings of both sums, on Σ_r |W_dr| |c_r|; multiplied by |q_d|
that is the bound of either order. The same holds for values: W_uv and the weighted sum over T change places.
"""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded
from .attention import propagate_sdpa
from .mha import linear, split_heads
from .norms import propagate_rms_norm
from .rope import propagate_rope


def bound_mla(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op mla."""
    x = arithmetic.exact(inputs["x"])
    B, T, _ = x.value.shape
    H, Dr = config["num_heads"], inputs["w_kr"].shape[0]
    Dn = inputs["w_uk"].shape[0] // H
    options = config.get("rope") or {}

    latent = _normalised(arithmetic, config, inputs, linear(arithmetic, x, inputs, "dkv"), "kv_norm")
    rope_key = propagate_rope(arithmetic, options, {}, split_heads(linear(arithmetic, x, inputs, "kr"), 1))
    source = x
    if "w_dq" in inputs:
        source = _normalised(arithmetic, config, inputs, linear(arithmetic, x, inputs, "dq"), "q_norm")
    q = split_heads(linear(arithmetic, source, inputs, "q"), H)
    turned = propagate_rope(arithmetic, options, {}, Bounded(*(part[..., Dn:] for part in q)))
    q = Bounded(*(np.concatenate([a[..., :Dn], b], axis=-1) for a, b in zip(q, turned, strict=True)))

    keys = split_heads(_expanded(arithmetic, latent, inputs["w_uk"], Dn + Dr), H)
    shared = Bounded(*(np.broadcast_to(part, (B, H, T, Dr)) for part in rope_key))
    k = Bounded(*(np.concatenate(pair, axis=-1) for pair in zip(keys, shared, strict=True)))
    v = split_heads(_expanded(arithmetic, latent, inputs["w_uv"], T), H)
    conditions = {name: inputs[name] for name in ("kv_lengths",) if name in inputs}
    scale = 1 / math.sqrt(Dn + Dr) if config.get("scale") is None else config["scale"]
    steps = propagate_sdpa(arithmetic, {"causal": config.get("causal"), "scale": scale}, conditions, q, k, v)
    width = inputs["w_o"].shape[1]
    attended = Bounded(*(part.swapaxes(1, 2).reshape(B, T, width) for part in steps["output"]))
    output = linear(arithmetic, attended, inputs, "o")
    return {
        "output": output.error,
        "weights": steps["weights"].error,
        "lse": steps["lse"].error,
        "latent": latent.error,
        "rope_key": rope_key.error[:, 0],
    }


def _expanded(arithmetic: Arithmetic, latent: Bounded, up: np.ndarray, others: int) -> Bounded:
    """c Wᵀ with the roundings of the sum over `others` granted to its terms."""
    return arithmetic.matmul(latent, arithmetic.exact(up.T), others)


def _normalised(
    arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors, x: Bounded, name: str
) -> Bounded:
    """RMS norm where there is a weight for one."""
    eps = 1e-6 if config.get("eps") is None else config["eps"]
    return propagate_rms_norm(arithmetic, x, inputs[name], eps) if name in inputs else x
