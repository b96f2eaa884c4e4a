"""What a case asks of a port, and what it costs: read off its config and inputs, so that no author can forget one.

The names are those of docs/protocol.md, which a port claims in its answer to `start`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray]


def features(op: str, config: Mapping[str, Any], inputs: Tensors, want: Sequence[str]) -> list[str]:
    """The features of the op that a port must claim before it is asked this."""
    if op == "kv_cache":
        return sorted(_cache_features(config, inputs))
    found = {name for name in want if name != "output"} | _attention_features(config, inputs, inputs)
    if (
        op == "sdpa"
        and {"q", "k", "v"} <= set(inputs)
        and inputs["q"].ndim == inputs["k"].ndim == inputs["v"].ndim == 4
    ):
        found |= _head_features(
            inputs["q"].shape[1], inputs["k"].shape[1], inputs["k"].shape[3], inputs["v"].shape[3]
        )
    if op == "sdpa" and "sinks" in inputs:
        found.add("sinks")
    if op == "mha":
        found |= {"context"} & set(inputs)
        if any(name in inputs for name in ("b_q", "b_k", "b_v", "b_o")):
            found.add("projection_bias")
        if config.get("num_kv_heads") not in (None, config.get("num_heads")):
            found.add("gqa")
        if "w_o" in inputs and inputs["w_o"].shape[1] != inputs["w_q"].shape[0]:
            found.add("value_dim")
    return sorted(found)


def _attention_features(config: Mapping[str, Any], inputs: Tensors, named: Mapping[str, Any]) -> set[str]:
    found = {name for name in ("window", "softcap", "scale", "q_offset") if config.get(name) is not None}
    found |= {"causal"} if config.get("causal") else set()
    found |= {name for name in ("mask", "bias", "kv_lengths") if name in named}
    return found | ({"q_offset_tensor"} if "q_offset" in inputs else set())


def _head_features(Hq: int, Hkv: int, D: int, Dv: int) -> set[str]:
    return ({"gqa"} if Hq != Hkv else set()) | ({"value_dim"} if Dv != D else set())


def _cache_features(config: Mapping[str, Any], inputs: Tensors) -> set[str]:
    found = {config.get("kind", "contiguous")} | ({"grow"} if config.get("capacity") is None else set())
    if config.get("value_dim") not in (None, config["head_dim"]):
        found.add("value_dim")
    for step in config["steps"]:
        action = step["do"]
        found.add(action)
        if action == "append" and step.get("lengths"):
            found.add("append_lengths")
        if action == "attend":
            found |= {"attend_lse"} if step.get("lse") else set()
            named = {name: step[name] for name in ("mask", "bias") if step.get(name)}
            found |= _attention_features({**step, "q_offset": None}, {}, named)
            offset = step.get("q_offset")
            found |= (
                {"q_offset_tensor"}
                if isinstance(offset, str)
                else {"q_offset"}
                if offset is not None
                else set()
            )
            q = inputs[step["q"]]
            found |= {"gqa"} if q.ndim == 4 and q.shape[1] != config["num_kv_heads"] else set()
    return found


def cost(
    op: str, config: Mapping[str, Any], inputs: Tensors, outputs: Tensors, codes: Sequence[str] | None = None
) -> tuple[int, int]:
    """Floating point operations (a multiply-add is two; causal counts what is visible) and bytes moved, in f32."""
    moved = sum(
        x.size * (4 if x.dtype.kind == "f" else x.itemsize) for x in (*inputs.values(), *outputs.values())
    )
    if op == "softmax":
        return 5 * inputs["x"].size, moved
    if op == "sdpa":
        return _sdpa_flops(config, inputs["q"].shape, inputs["k"].shape[2], inputs["v"].shape[3]), moved
    if op == "mha":
        x, context = inputs["x"], inputs.get("context", inputs["x"])
        projections = sum(
            2 * source.shape[0] * source.shape[1] * inputs[w].size
            for source, w in ((x, "w_q"), (context, "w_k"), (context, "w_v"), (x, "w_o"))
        )
        heads = config["num_heads"]
        D, Dv = inputs["w_q"].shape[0] // heads, inputs["w_o"].shape[1] // heads
        shape = (x.shape[0], heads, x.shape[1], D)
        return projections + _sdpa_flops(config, shape, context.shape[1], Dv), moved
    held = flops = 0
    steps = config["steps"]
    for step in (
        step for step, code in zip(steps, codes or ["ok"] * len(steps), strict=True) if code == "ok"
    ):
        if step["do"] == "append":
            held += inputs[step["k"]].shape[2]
        elif step["do"] == "attend":
            flops += _sdpa_flops(
                {},
                inputs[step["q"]].shape,
                held,
                config["value_dim"] if config.get("value_dim") is not None else config["head_dim"],
            )
    return flops, moved


def _sdpa_flops(config: Mapping[str, Any], q_shape: tuple[int, ...], Tk: int, Dv: int) -> int:
    B, Hq, Tq, D = q_shape
    pairs = Tq * Tk
    if config.get("causal"):
        pairs = int(np.clip(np.arange(Tq) + 1 + (config.get("q_offset") or 0), 0, Tk).sum())
    return 2 * B * Hq * pairs * (D + Dv)
