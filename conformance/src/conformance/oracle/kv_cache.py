"""A cache script, replayed on plain lists: one list of positions a row, nothing preallocated, nothing shared."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .sdpa import answer_sdpa

Tensors = dict[str, np.ndarray]


def answer_kv_cache(config: dict[str, Any], inputs: Tensors, steps: Sequence[str] | None = None) -> Tensors:
    """What the ok steps write. `steps`: the code of each step; one that must fail is skipped."""
    written: Tensors = {}
    for attention in attends(config, inputs, steps):
        step, arguments = attention["step"], attention["inputs"]
        if step["do"] == "read":
            written |= {f"{step['out']}.{name}": x for name, x in arguments.items()}
            continue
        answer = answer_sdpa(attention["config"], arguments)
        written[step["out"]] = answer["output"]
        if step.get("lse"):
            written[step["lse"]] = answer["lse"]
    return written


def attends(config: dict[str, Any], inputs: Tensors, steps: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Every attend and read of the script, with the sdpa config and inputs that an attend amounts to."""
    rows: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(config["batch"])]
    for number, step in enumerate(config["steps"]):
        if steps is not None and steps[number] != "ok":
            continue
        action = step["do"]
        if action == "append":
            k, v = inputs[step["k"]], inputs[step["v"]]
            for b, row in enumerate(rows):
                count = int(inputs[step["lengths"]][b]) if step.get("lengths") else k.shape[2]
                row.extend((k[b, :, t], v[b, :, t]) for t in range(count))
        elif action == "truncate":
            rows = [row[:length] for row, length in zip(rows, step["lengths"], strict=True)]
        elif action == "reset":
            rows = [[] for _ in rows]
        else:
            held = _held(config, rows, inputs)
            yield {
                "step": step,
                "config": _config(step),
                "inputs": held if action == "read" else _attend(step, held, inputs),
            }


def _held(config: dict[str, Any], rows: list[Any], inputs: Tensors) -> Tensors:
    """Keys and values as blocks (B, Hkv, L, ·), zero beyond each row's length."""
    longest = max((len(row) for row in rows), default=0)
    value_dim = config["head_dim"] if config.get("value_dim") is None else config["value_dim"]
    k = np.zeros((len(rows), config["num_kv_heads"], longest, config["head_dim"]))
    v = np.zeros((len(rows), config["num_kv_heads"], longest, value_dim))
    for b, row in enumerate(rows):
        for t, (key, value) in enumerate(row):
            k[b, :, t], v[b, :, t] = key, value
    return {"k": k, "v": v, "lengths": np.array([len(row) for row in rows], np.int64)}


def _attend(step: dict[str, Any], held: Tensors, inputs: Tensors) -> Tensors:
    q, lengths = inputs[step["q"]], held["lengths"]
    arguments = {"q": q, "k": held["k"], "v": held["v"], "kv_lengths": lengths}
    named = step.get("q_offset")
    if isinstance(named, str):
        arguments["q_offset"] = inputs[named]
    elif named is None:
        arguments["q_offset"] = lengths - q.shape[2]
    for name in ("mask", "bias"):
        if step.get(name):
            arguments[name] = inputs[step[name]]
    return arguments


def _config(step: dict[str, Any]) -> dict[str, Any]:
    names = ("scale", "causal", "window", "softcap", "q_offset")
    return {name: step[name] for name in names if not isinstance(step.get(name), str) and name in step}
