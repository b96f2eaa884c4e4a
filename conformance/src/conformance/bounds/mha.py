"""The bounds of mha: q, k and v carry the error of all that happens to them before the attention."""

from typing import Any

import numpy as np

from ..oracle.mha import unpack
from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded
from .attention import propagate_sdpa
from .elementwise import mean
from .norms import propagate_rms_norm
from .rope import propagate_rope


def bound_mha(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op mha: exact x and context."""
    x = arithmetic.exact(inputs["x"])
    context = arithmetic.exact(inputs["context"]) if "context" in inputs else x
    steps = propagate_mha(arithmetic, config, inputs, x, context)
    return {name: step.error for name, step in steps.items()}


def propagate_mha(
    arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors, x: Bounded, context: Bounded
) -> dict[str, Bounded]:
    """Every output of mha on x (B, Tq, C) and context (B, Tk, Cc) that may be uncertain."""
    inputs = inputs | unpack(config, inputs)
    heads = config["num_heads"]
    kv_heads = config.get("num_kv_heads") or heads
    q, k, v = (
        split_heads(linear(arithmetic, source, inputs, name), count)
        for source, name, count in ((x, "q", heads), (context, "k", kv_heads), (context, "v", kv_heads))
    )
    q, k = (_prepare(arithmetic, config, inputs, y, name) for y, name in ((q, "q"), (k, "k")))
    steps = propagate_sdpa(arithmetic, config, inputs, q, k, v)
    attended = steps["output"]
    if "head_mask" in inputs:
        kept = inputs["head_mask"][:, None, None]
        attended = Bounded(*(np.where(kept, part, 0) for part in attended))
    B, H, T, Dv = attended.value.shape
    merged = Bounded(*(part.swapaxes(1, 2).reshape(B, T, H * Dv) for part in attended))
    return {
        "output": linear(arithmetic, merged, inputs, "o"),
        "weights": steps["weights"],
        "lse": steps["lse"],
        "mean_weights": mean(arithmetic, steps["weights"], axis=1),
    }


def linear(arithmetic: Arithmetic, x: Bounded, weights: Tensors, name: str) -> Bounded:
    """x Wᵀ + b, with the weights w_NAME and perhaps b_NAME."""
    y = arithmetic.matmul(x, arithmetic.exact(weights[f"w_{name}"].T))
    bias = weights.get(f"b_{name}")
    return y if bias is None else arithmetic.add(y, arithmetic.exact(bias))


def split_heads(x: Bounded, heads: int) -> Bounded:
    """(B, T, heads·n) to (B, heads, T, n)."""
    B, T, width = x.value.shape
    return Bounded(*(part.reshape(B, T, heads, width // heads).swapaxes(1, 2) for part in x))


def _prepare(
    arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors, x: Bounded, name: str
) -> Bounded:
    """Queries or keys after the norm of each head and the rotation, where there are such."""
    if f"{name}_norm" in inputs:
        eps = 1e-6 if config.get("qk_norm_eps") is None else config["qk_norm_eps"]
        x = propagate_rms_norm(arithmetic, x, inputs[f"{name}_norm"], eps)
    return x if config.get("rope") is None else propagate_rope(arithmetic, config["rope"], inputs, x)
