"""Features and costs of a cache script."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .attention import attention_features, attention_flops

Tensors = Mapping[str, np.ndarray]


def cache_features(config: Mapping[str, Any], inputs: Tensors) -> set[str]:
    """The kind, the steps, and the conditions of every attend."""
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
            found |= attention_features({**step, "q_offset": None}, {}, named)
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


def cache_flops(config: Mapping[str, Any], inputs: Tensors, codes: Sequence[str] | None) -> int:
    """Of every attend that is ok, over all that is held."""
    held = flops = 0
    steps = config["steps"]
    value_dim = config["value_dim"] if config.get("value_dim") is not None else config["head_dim"]
    for step, code in zip(steps, codes or ["ok"] * len(steps), strict=True):
        if code == "ok" and step["do"] == "append":
            held += inputs[step["k"]].shape[2]
        elif code == "ok" and step["do"] == "attend":
            flops += attention_flops({}, inputs[step["q"]].shape, held, value_dim)
    return flops
