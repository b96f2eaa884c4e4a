"""Multi-head attention from the projections' index formula."""

from typing import Any

import numpy as np

from .sdpa import answer_sdpa

Tensors = dict[str, np.ndarray]


def answer_mha(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of mha: output, weights, lse."""
    x = {name: t.astype(np.float64) if t.dtype.kind == "f" else t for name, t in inputs.items()}
    context = x.get("context", x["x"])
    heads = config["num_heads"]
    kv_heads = config.get("num_kv_heads") or heads
    attention: Tensors = {
        name: t for name, t in x.items() if name in ("mask", "bias", "kv_lengths", "q_offset")
    }
    attention["q"] = project(x["x"], x["w_q"], x.get("b_q"), heads)
    attention["k"] = project(context, x["w_k"], x.get("b_k"), kv_heads)
    attention["v"] = project(context, x["w_v"], x.get("b_v"), kv_heads)
    steps = answer_sdpa(config, attention)
    _, H, _, Dv = steps["output"].shape
    w_o = x["w_o"].reshape(-1, H, Dv)
    output = np.einsum("bhtd,ohd->bto", steps["output"], w_o)
    if "b_o" in x:
        output = output + x["b_o"]
    return {"output": output, "weights": steps["weights"], "lse": steps["lse"]}


def project(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, heads: int) -> np.ndarray:
    """(B, T, C) by (heads·n, C) to (B, heads, T, n): head h owns the rows from h·n on."""
    by_head = w.reshape(heads, -1, w.shape[1])
    y: np.ndarray = np.einsum("btc,hnc->bhtn", x, by_head)
    return y if b is None else np.asarray(y + b.reshape(1, heads, 1, -1))
