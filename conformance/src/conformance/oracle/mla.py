"""Multi-head latent attention (DeepSeek-V2, 2024), score by score, the shared rotary key as a term of its own."""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors
from .norms import rms_norm
from .rope import positions_of, rotary_tables, rotate
from .sdpa import visible_keys
from .softmax import softmax_row


def answer_mla(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output, weights, lse, latent, rope_key."""
    w = {name: t.astype(np.float64) for name, t in inputs.items() if t.dtype.kind == "f"}
    x = w["x"]
    B, T, _ = x.shape
    H, Dr = config["num_heads"], w["w_kr"].shape[0]
    Dn, Dv = w["w_uk"].shape[0] // H, w["w_uv"].shape[0] // H
    eps = 1e-6 if config.get("eps") is None else config["eps"]
    scale = 1 / math.sqrt(Dn + Dr) if config.get("scale") is None else config["scale"]

    latent = normalised(x @ w["w_dkv"].T, w.get("kv_norm"), eps)
    rope_key = turned(config, (x @ w["w_kr"].T)[:, None])[:, 0]
    source = normalised(x @ w["w_dq"].T, w.get("q_norm"), eps) if "w_dq" in w else x
    q = (source @ w["w_q"].T).reshape(B, T, H, Dn + Dr).swapaxes(1, 2)
    q_plain, q_turned = q[..., :Dn], turned(config, q[..., Dn:])
    up_k, up_v = w["w_uk"].reshape(H, Dn, -1), w["w_uv"].reshape(H, Dv, -1)
    w_o = w["w_o"].reshape(-1, H, Dv)

    output = np.zeros((B, T, w_o.shape[0]))
    weights, lse = np.zeros((B, H, T, T)), np.zeros((B, H, T))
    for b, h, i in np.ndindex(B, H, T):
        keys = np.flatnonzero(visible_keys({"causal": config.get("causal")}, inputs, b, h, i, (B, H, T, T)))
        scores = [
            scale * (q_plain[b, h, i] @ (up_k[h] @ latent[b, j]) + q_turned[b, h, i] @ rope_key[b, j])
            for j in keys
        ]
        weights[b, h, i, keys], lse[b, h, i] = softmax_row(np.array(scores))
        for j in keys:
            output[b, i] += w_o[:, h] @ (up_v[h] @ (weights[b, h, i, j] * latent[b, j]))
    return {"output": output, "weights": weights, "lse": lse, "latent": latent, "rope_key": rope_key}


def normalised(x: np.ndarray, weight: np.ndarray | None, eps: float) -> np.ndarray:
    """RMS norm where there is a weight for one."""
    return x if weight is None else rms_norm(x, weight, eps)


def turned(config: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """x (B, ·, T, Dr) turned to its positions."""
    options = config.get("rope") or {}
    R = x.shape[3] if options.get("rotary_dim") is None else int(options["rotary_dim"])
    cos, sin = rotary_tables(options, positions_of(options, {}, x.shape[0], x.shape[2]), R)
    return rotate(x, cos, sin, bool(options.get("interleaved")))
