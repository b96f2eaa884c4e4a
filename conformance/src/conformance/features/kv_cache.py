"""Features and costs of a cache script."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..oracle.cache_state import EVICTING, WITH_CAPACITY
from .arguments import Config, Tensors
from .attention import attention_features, attention_flops

Step = Mapping[str, Any]
ATTENDING = ("attend", "append_attend")
APPENDING = ("append", "append_attend")


def cache_features(config: Config, inputs: Tensors) -> set[str]:
    """The kind and what it is configured with, the steps, and the conditions of every attend."""
    kind = config.get("kind") or "contiguous"
    found = {kind} | ({"grow"} if kind in WITH_CAPACITY and config.get("capacity") is None else set())
    if config.get("value_dim") not in (None, config.get("head_dim")):
        found.add("value_dim")
    found |= {name for name in ("rope", "rope_at", "group") if config.get(name) is not None}
    if kind == "quantised":
        found |= {config.get("format"), *(["zero_point"] if config.get("zero_point") else [])} - {None}
        found |= {"key_groups"} if config.get("key_groups") is not None else set()
    if kind in EVICTING and config.get("track"):
        found.add("track")
    if config.get("untimed"):
        found.add("untimed")
    for step in config["steps"]:
        found |= _step_features(config, step, inputs)
    return found


def _step_features(config: Config, step: Step, inputs: Tensors) -> set[str]:
    found = {step["do"]}
    if step["do"] in APPENDING:
        found |= {"append_lengths"} if step.get("lengths") else set()
        found |= {"append_padding"} if step.get("padding") is not None else set()
        found |= {"tokens"} if step.get("tokens") is not None else set()
    if step["do"] in ATTENDING:
        found |= _attend_features(config, step, inputs)
    if step["do"] == "read":
        found |= {name for name in ("codes", "positions", "tracked") if step.get(name)}
    policy = step.get("policy")
    if step["do"] == "evict" and isinstance(policy, Mapping):
        found |= {f"evict_{policy['type']}"} if isinstance(policy.get("type"), str) else set()
        found |= {"budget_list"} if isinstance(policy.get("budget"), list) else set()
    return found


def _attend_features(config: Config, step: Step, inputs: Tensors) -> set[str]:
    found = {"attend_lse"} if step.get("lse") else set()
    named = {name: step[name] for name in ("mask", "bias") if step.get(name)}
    found |= attention_features({**step, "q_offset": None}, {}, named)
    offset = step.get("q_offset")
    if offset is not None:
        found.add("q_offset_tensor" if isinstance(offset, str) else "q_offset")
    q = inputs.get(step["q"])
    heads = config.get("num_kv_heads")
    if heads is not None and q is not None and q.ndim == 4 and q.shape[1] != heads:
        found.add("gqa")
    return found


def cache_flops(config: Config, inputs: Tensors, codes: Sequence[str] | None) -> int:
    """Of every attend that is ok, over all that was ever appended to the cache of its name."""
    held: dict[str, int] = {}
    flops = 0
    steps = config["steps"]
    latent = config.get("kind") == "latent"
    D = config["latent_dim"] if latent else config["head_dim"]
    value_dim = config["value_dim"] if config.get("value_dim") is not None else D
    for step, code in zip(steps, codes or ["ok"] * len(steps), strict=True):
        name = step.get("cache") or "main"
        if code == "ok" and step["do"] in APPENDING:
            held[name] = held.get(name, 0) + inputs[step["latent" if latent else "k"]].shape[-2]
        if code == "ok" and step["do"] in ATTENDING:
            flops += attention_flops({}, inputs[step["q"]].shape, held.get(name, 0), value_dim)
        if code == "ok" and step["do"] == "fork":
            held[step["into"]] = held.get(name, 0)
    return flops
