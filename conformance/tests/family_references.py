"""The ops of the family once more, in torch and vectorised: in float64 a second opinion on the oracle, in float32 an
honest port for the bounds.

Where torch has the function, it is torch's own; elsewhere the formula over whole arrays, with masks where the oracle
walks over single keys.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Tensor = torch.Tensor
Config = dict[str, Any]
Inputs = dict[str, Tensor]
Outputs = dict[str, Tensor]


def _given(config: Config, name: str, default: float) -> float:
    return default if config.get(name) is None else float(config[name])


def layer_norm(config: Config, x: Inputs) -> Outputs:
    n = x["x"].shape[-1]
    output, mean, inv_std = torch.native_layer_norm(
        x["x"], [n], x.get("weight"), x.get("bias"), _given(config, "eps", 1e-5)
    )
    return {"output": output, "mean": mean[..., 0], "inv_std": inv_std[..., 0]}


def rms_norm(config: Config, x: Inputs) -> Outputs:
    return {"output": F.rms_norm(x["x"], [x["x"].shape[-1]], x.get("weight"), _given(config, "eps", 1e-5))}


def gelu(config: Config, x: Inputs) -> Outputs:
    return {"output": F.gelu(x["x"], approximate=config.get("approximate") or "none")}


def swiglu(config: Config, x: Inputs) -> Outputs:
    return {"output": x["a"] * torch.sigmoid(_given(config, "alpha", 1) * x["a"]) * x["b"]}


def linear_attention(config: Config, x: Inputs) -> Outputs:
    """By states: the running sums of f(k) vᵀ, one for every position."""
    q, k, v = F.elu(x["q"]) + 1, F.elu(x["k"]) + 1, x["v"]
    group = q.shape[1] // max(k.shape[1], 1)
    states = torch.einsum("bhtd,bhte->bhtde", k, v)
    norms = k
    first = (x["state"], x["norm"]) if "state" in x else (0.0, 0.0)
    state, norm = states.sum(dim=2) + first[0], norms.sum(dim=2) + first[1]
    if config.get("causal"):
        seen = states.cumsum(dim=2), norms.cumsum(dim=2)
        if "state" in x:
            seen = seen[0] + first[0][:, :, None], seen[1] + first[1][:, :, None]
    else:
        shape = (-1, -1, q.shape[2])
        seen = state[:, :, None].expand(*shape, -1, -1), norm[:, :, None].expand(*shape, -1)
    seen = tuple(y.repeat_interleave(group, dim=1) for y in seen)
    numerator = torch.einsum("bhtd,bhtde->bhte", q, seen[0])
    denominator = torch.einsum("bhtd,bhtd->bht", q, seen[1])[..., None]
    output = torch.where(denominator == 0, torch.zeros_like(numerator), numerator / denominator)
    return {"output": output, "state": state, "norm": norm}


def gated_linear(config: Config, x: Inputs) -> Outputs:
    """The recurrence as it is written down, step by step."""
    q, k, v = x["q"], x["k"], x["v"]
    B, Hkv, T, D = k.shape
    group = q.shape[1] // max(Hkv, 1)
    rule = config.get("rule") or "linear"
    scale = _given(config, "scale", 1 / math.sqrt(D))
    state = x["state"].clone() if "state" in x else q.new_zeros(B, Hkv, D, v.shape[3])
    output = q.new_zeros(*q.shape[:3], v.shape[3])
    for t in range(T):
        if "gated" in rule:
            state = state * torch.exp(x["decay"][:, :, t])[..., None]
        value = v[:, :, t]
        if "delta" in rule:
            value = x["beta"][:, :, t] * (value - torch.einsum("bhd,bhde->bhe", k[:, :, t], state))
        state = state + k[:, :, t, :, None] * value[:, :, None]
        output[:, :, t] = torch.einsum(
            "bhd,bhde->bhe", q[:, :, t] * scale, state.repeat_interleave(group, dim=1)
        )
    return {"output": output, "state": state}


def attention(
    q: Tensor, k: Tensor, v: Tensor, shown: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, weights and lse of masked attention; a row without keys is 0."""
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (y.repeat_interleave(group, dim=1) for y in (k, v))
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    scores = scores.masked_fill(~shown, -math.inf)
    weights = torch.where(shown.any(dim=-1, keepdim=True), torch.softmax(scores, dim=-1), 0)
    return weights @ v, weights, torch.logsumexp(scores, dim=-1)


def _shown(B: int, Tq: int, Tk: int, causal: Any, lengths: Tensor | None) -> Tensor:
    """bool (B, 1, Tq, Tk)."""
    shown = torch.ones(B, 1, Tq, Tk, dtype=torch.bool)
    if causal:
        shown = shown & torch.ones(Tq, Tk, dtype=torch.bool).tril()
    if lengths is not None:
        shown = shown & (torch.arange(Tk) < lengths[:, None, None, None])
    return shown


def pattern_mask(config: Config, x: Inputs) -> Tensor:
    """bool (Tq, Tk) of every pattern that draws nothing, over whole tables."""
    Tq, Tk = x["q"].shape[2], x["k"].shape[2]
    p = config["pattern"]
    i, j = torch.arange(Tq)[:, None], torch.arange(Tk)[None]
    r = j - i
    kind = p["type"]
    if kind == "window":
        mask = (r >= -p["left"]) & (r <= p["right"])
    elif kind == "dilated":
        d = p["dilation"]
        mask = (r.remainder(d) == 0) & (
            r.div(d, rounding_mode="floor").clamp(-p["left"], p["right"]) * d == r
        )
    elif kind == "strided":
        mask = (r <= 0) & ((-r < p["stride"]) | (r.remainder(p["stride"]) == 0))
    elif kind == "fixed":
        s = p["stride"]
        mask = (r <= 0) & ((i // s == j // s) | (j % s >= s - p["summary"]))
    elif kind == "global":
        token = torch.tensor(p["tokens"], dtype=torch.int64)
        near = (r >= -p["left"]) & (r <= p["right"])
        mask = near | torch.isin(i, token) | torch.isin(j, token)
    elif kind == "blocks":
        b = p["block"]
        mask = x["block_mask"].repeat_interleave(b, 0).repeat_interleave(b, 1)[:Tq, :Tk]
    else:
        b = p["block"]
        a, c = i // b, j // b
        mask = ((a - c).abs() <= p["window"]) | (a < p["global"]) | (c < p["global"])
    return mask & (r <= 0) if config.get("causal") else mask


def sparse(config: Config, x: Inputs) -> Outputs:
    mask = pattern_mask(config, x)
    output, _, lse = attention(x["q"], x["k"], x["v"], mask, config.get("scale"))
    return {"output": output, "lse": lse, "mask": mask, "visited": mask.sum(dim=1)}


def structured(config: Config, x: Inputs) -> Outputs:
    h = x["h"]
    B, T, _ = h.shape
    scores = (torch.tanh(h @ x["w_1"].T) @ x["w_2"].T).transpose(1, 2)
    shown = _shown(B, 1, T, False, x.get("kv_lengths"))[:, 0]
    scores = scores.masked_fill(~shown, -math.inf)
    weights = torch.where(shown.any(dim=-1, keepdim=True), torch.softmax(scores, dim=-1), 0)
    overlap = weights @ weights.transpose(1, 2) - torch.eye(weights.shape[1], dtype=h.dtype)
    return {"output": weights @ h, "weights": weights, "penalty": (overlap**2).sum(dim=(1, 2))}


def rope(x: Tensor, config: Config) -> Tensor:
    """x (B, H, T, D) turned, without a scaling; angles in float64."""
    R = int(config.get("rotary_dim") or x.shape[3])
    positions = torch.arange(x.shape[2], dtype=torch.float64) + int(config.get("offset") or 0)
    frequency = _given(config, "base", 10000) ** (-torch.arange(0, R, 2, dtype=torch.float64) / R)
    angle = positions[:, None] * frequency
    cos, sin = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
    if config.get("interleaved"):
        a, b = x[..., 0:R:2], x[..., 1:R:2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    else:
        a, b = x[..., : R // 2], x[..., R // 2 : R]
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return torch.cat([turned, x[..., R:]], dim=-1)


def _heads(x: Tensor, w: Tensor, b: Tensor | None, heads: int) -> Tensor:
    return F.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2)


def mla(config: Config, x: Inputs, *, absorbed: bool = False) -> Outputs:
    H, Dr = config["num_heads"], x["w_kr"].shape[0]
    Dn, Dv = x["w_uk"].shape[0] // H, x["w_uv"].shape[0] // H
    B, T, _ = x["x"].shape
    eps = _given(config, "eps", 1e-6)

    def normed(y: Tensor, name: str) -> Tensor:
        return F.rms_norm(y, [y.shape[-1]], x[name], eps) if name in x else y

    turn = config.get("rope") or {}
    latent = normed(F.linear(x["x"], x["w_dkv"]), "kv_norm")
    rope_key = rope(F.linear(x["x"], x["w_kr"])[:, None], turn)
    source = normed(F.linear(x["x"], x["w_dq"]), "q_norm") if "w_dq" in x else x["x"]
    q = _heads(source, x["w_q"], None, H)
    q_plain, q_turned = q[..., :Dn], rope(q[..., Dn:], turn)
    scale = _given(config, "scale", 1 / math.sqrt(Dn + Dr))
    shown = _shown(B, T, T, config.get("causal"), x.get("kv_lengths"))
    shared = rope_key.expand(B, H, T, Dr)
    if absorbed:
        up_k, up_v = x["w_uk"].view(H, Dn, -1), x["w_uv"].view(H, Dv, -1)
        lifted = torch.einsum("bhtn,hnr->bhtr", q_plain, up_k)
        keys = latent[:, None].expand(B, H, T, -1)
        mixed, weights, lse = attention(
            torch.cat([lifted, q_turned], -1), torch.cat([keys, shared], -1), keys, shown, scale
        )
        mixed = torch.einsum("bhtr,hvr->bhtv", mixed, up_v)
    else:
        k = torch.cat([_heads(latent, x["w_uk"], None, H), shared], -1)
        v = _heads(latent, x["w_uv"], None, H)
        mixed, weights, lse = attention(torch.cat([q_plain, q_turned], -1), k, v, shown, scale)
    output = F.linear(mixed.transpose(1, 2).flatten(2), x["w_o"])
    return {"output": output, "weights": weights, "lse": lse, "latent": latent, "rope_key": rope_key[:, 0]}


def _mha(config: Config, w: Inputs, x: Tensor, context: Tensor, shown: Tensor, turn: Any) -> Tensor:
    H = config["num_heads"]
    Hkv = config.get("num_kv_heads") or H
    q = _heads(x, w["w_q"], w.get("b_q"), H)
    k, v = (_heads(context, w[f"w_{n}"], w.get(f"b_{n}"), Hkv) for n in ("k", "v"))
    eps = _given(config, "qk_norm_eps", 1e-6)
    if "q_norm" in w:
        q, k = (F.rms_norm(y, [y.shape[-1]], w[n], eps) for y, n in ((q, "q_norm"), (k, "k_norm")))
    if turn is not None:
        q, k = rope(q, turn), rope(k, turn)
    mixed, _, _ = attention(q, k, v, shown)
    return F.linear(mixed.transpose(1, 2).flatten(2), w["w_o"], w.get("b_o"))


def _norm(config: Config, w: Inputs, x: Tensor) -> Tensor:
    eps = _given(config, "eps", 1e-5)
    if config.get("norm") == "rms":
        return F.rms_norm(x, [x.shape[-1]], w["weight"], eps)
    return F.layer_norm(x, [x.shape[-1]], w["weight"], w.get("bias"), eps)


def _below(x: Inputs, prefix: str) -> Inputs:
    return {name.removeprefix(prefix): y for name, y in x.items() if name.startswith(prefix)}


def _feed_forward(config: Config, w: Inputs, x: Tensor) -> Tensor:
    act: dict[str, Callable[[Tensor], Tensor]] = {
        "gelu": F.gelu,
        "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
        "relu": F.relu,
        "swiglu": F.silu,
    }
    hidden = act[config.get("activation") or "gelu"](F.linear(x, w["w_1"], w.get("b_1")))
    if "w_3" in w:
        hidden = hidden * F.linear(x, w["w_3"], w.get("b_3"))
    return F.linear(hidden, w["w_2"], w.get("b_2"))


def block(config: Config, x: Inputs) -> Outputs:
    y, context = x["x"], x.get("context")
    B, T, _ = y.shape
    shown = _shown(B, T, T, config.get("causal"), x.get("kv_lengths"))

    def attend(z: Tensor) -> Tensor:
        return _mha(config, _below(x, "attention."), z, z, shown, config.get("rope"))

    def cross(z: Tensor) -> Tensor:
        assert context is not None
        seen = _shown(B, T, context.shape[1], False, x.get("context_lengths"))
        return _mha(config, _below(x, "cross."), z, context, seen, None)

    def feed(z: Tensor) -> Tensor:
        return _feed_forward(config, _below(x, "ff."), z)

    for n, part in enumerate([attend, feed] if context is None else [attend, cross, feed], 1):
        w = _below(x, f"norm_{n}.")
        y = y + part(_norm(config, w, y)) if config.get("norm_first", True) else _norm(config, w, y + part(y))
    return {"output": y}


def transformer(config: Config, x: Inputs) -> Outputs:
    tokens = x["tokens"]
    y = F.embedding(tokens, x["embedding"])
    if "position_embedding" in x:
        y = y + x["position_embedding"][: tokens.shape[1]]
    if "segments" in x:
        y = y + F.embedding(x["segments"], x["segment_embedding"])
    if "embedding_norm.weight" in x:
        y = _norm(config, _below(x, "embedding_norm."), y)
    for n in range(config["num_layers"]):
        layer = _below(x, f"layers.{n}.")
        layer["x"] = y
        if "kv_lengths" in x:
            layer["kv_lengths"] = x["kv_lengths"]
        y = block(config, layer)["output"]
    if "final_norm.weight" in x:
        y = _norm(config, _below(x, "final_norm."), y)
    return {"output": y, "logits": y @ x.get("unembedding", x["embedding"]).T}


def cache_write(config: Config, x: Inputs) -> Outputs:
    output, T, L = x["cache"].clone(), x["update"].shape[-2], x["cache"].shape[-2]
    for b in range(output.shape[0]):
        start = int(x["write_indices"][b]) if "write_indices" in x else 0
        places = [(start + t) % L if config.get("circular") else start + t for t in range(T)]
        output[b][..., places, :] = x["update"][b]
    return {"output": output}


REFERENCES: dict[str, Callable[[Config, Inputs], Outputs]] = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "gelu": gelu,
    "swiglu": swiglu,
    "linear_attention": linear_attention,
    "gated_linear": gated_linear,
    "sparse": sparse,
    "structured": structured,
    "mla": mla,
    "block": block,
    "transformer": transformer,
    "cache_write": cache_write,
}


def answer_in_torch(
    op: str, config: Config, inputs: dict[str, np.ndarray], **more: Any
) -> dict[str, np.ndarray]:
    """Every output of the op by its reference, in the type of the inputs."""
    tensors = {name: torch.from_numpy(np.array(x)) for name, x in inputs.items()}
    return {name: y.numpy() for name, y in REFERENCES[op](config, tensors, **more).items()}
