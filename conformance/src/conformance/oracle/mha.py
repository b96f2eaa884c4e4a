"""Multi-head attention from the projections' index formula."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .norms import rms_norm
from .rope import positions_of, rotary_tables, rotate
from .sdpa import answer_sdpa


def answer_mha(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of mha: output, weights, lse, mean_weights."""
    x = {name: t.astype(np.float64) if t.dtype.kind == "f" else t for name, t in inputs.items()}
    x |= unpack(config, x)
    context = x.get("context", x["x"])
    heads = config["num_heads"]
    kv_heads = config.get("num_kv_heads") or heads
    attention: Tensors = {
        name: t for name, t in x.items() if name in ("mask", "bias", "kv_lengths", "q_offset")
    }
    attention["q"] = project(x["x"], x["w_q"], x.get("b_q"), heads)
    attention["k"] = project(context, x["w_k"], x.get("b_k"), kv_heads)
    attention["v"] = project(context, x["w_v"], x.get("b_v"), kv_heads)
    for name in ("q", "k"):
        if f"{name}_norm" in x:
            eps = 1e-6 if config.get("qk_norm_eps") is None else config["qk_norm_eps"]
            attention[name] = rms_norm(attention[name], x[f"{name}_norm"], eps)
        attention[name] = _place(config, x, attention[name])
    steps = answer_sdpa(config, attention)
    _, H, _, Dv = steps["output"].shape
    heads_out, w_o = steps["output"], x["w_o"].reshape(-1, H, Dv)
    if "head_mask" in x:
        heads_out, w_o = heads_out[:, x["head_mask"]], w_o[:, x["head_mask"]]
    output = np.einsum("bhtd,ohd->bto", heads_out, w_o)
    if "b_o" in x:
        output = output + x["b_o"]
    weights = steps["weights"]
    return {"output": output, "weights": weights, "lse": steps["lse"], "mean_weights": weights.mean(axis=1)}


def project(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, heads: int) -> np.ndarray:
    """(B, T, C) by (heads·n, C) to (B, heads, T, n): head h owns the rows from h·n on."""
    by_head = w.reshape(heads, -1, w.shape[1])
    y: np.ndarray = np.einsum("btc,hnc->bhtn", x, by_head)
    return y if b is None else np.asarray(y + b.reshape(1, heads, 1, -1))


def unpack(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """w_q, w_k, w_v and their biases as rows of the packed ones; nothing where nothing is packed."""
    if "w_qkv" not in inputs:
        return {}
    Hq = config["num_heads"]
    Hkv = config.get("num_kv_heads") or Hq
    D = inputs["w_qkv"].shape[0] // (Hq + 2 * Hkv)
    owners = packed_heads(config.get("packing") or "blocks", Hq, Hkv)
    separate = {}
    for kind in ("w", "b"):
        if f"{kind}_qkv" in inputs:
            blocks = inputs[f"{kind}_qkv"].reshape(Hq + 2 * Hkv, D, *inputs[f"{kind}_qkv"].shape[1:])
            for name in ("q", "k", "v"):
                mine = blocks[[place for place, owner in enumerate(owners) if owner == name]]
                separate[f"{kind}_{name}"] = mine.reshape(-1, *mine.shape[2:])
    return separate


def packed_heads(packing: str, Hq: int, Hkv: int) -> list[str]:
    """Whether q, k or v owns each block of D packed rows, from the first to the last."""
    if packing == "heads":
        return (["q"] * (Hq // Hkv) + ["k", "v"]) * Hkv
    return ["q"] * Hq + ["k"] * Hkv + ["v"] * Hkv


def _place(config: dict[str, Any], inputs: Tensors, x: np.ndarray) -> np.ndarray:
    """Queries or keys (B, H, T, D) turned to their positions, where there is a rope."""
    options = config.get("rope")
    if options is None:
        return x
    R = x.shape[3] if options.get("rotary_dim") is None else int(options["rotary_dim"])
    positions = positions_of(options, inputs, x.shape[0], x.shape[2])
    cos, sin = rotary_tables(options, positions, R)
    return rotate(x, cos, sin, bool(options.get("interleaved")))
