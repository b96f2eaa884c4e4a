"""Our other ops as one node of an ONNX operator each: docs/onnx.md read from right to left.

Letters: B batch, H heads, T length, D head size, R channels that turn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from engine import TYPES, Engine, InvalidRequest, Tensors, Unsupported
from onnx import TensorProto

Config = Mapping[str, Any]


def softmax(engine: Engine, config: Config, tensors: Tensors, want: Sequence[str]) -> Tensors:
    """Softmax over the last axis."""
    (y,) = engine.run_node("Softmax", 13, ["input"], {"input": tensors["x"]}, ["output"], {"axis": -1})
    return {"output": y}


def rope(engine: Engine, config: Config, tensors: Tensors, want: Sequence[str]) -> Tensors:
    """RotaryEmbedding. Its tables are the caller's business, so without any they are made here."""
    x = tensors["x"]
    B, _, T, D = x.shape
    if config.get("scaling") is not None:
        raise Unsupported("scaling")
    turned = int(config.get("rotary_dim") or D)
    offset = int(config.get("offset") or 0)
    positions = tensors.get("positions", np.broadcast_to(np.arange(T) + offset, (B, T)))
    cos, sin = (tensors[name] for name in ("cos", "sin")) if "cos" in tensors else (None, None)
    if cos is None or sin is None:
        positions, cos, sin = make_tables(positions, float(config.get("base") or 10000), turned, x.dtype)
    inputs = {"X": x, "cos_cache": cos, "sin_cache": sin, "position_ids": positions.astype(np.int64)}
    attributes = {
        "interleaved": int(bool(config.get("interleaved"))),
        "rotary_embedding_dim": 0 if turned == D else turned,
    }
    (y,) = engine.run_node("RotaryEmbedding", 23, list(inputs), inputs, ["Y"], attributes)
    return {"output": y}


def make_tables(
    positions: np.ndarray, base: float, turned: int, dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A table with one row for every position that occurs, and where each token finds its own."""
    found, rows = np.unique(positions, return_inverse=True)
    angles = found[:, None] * base ** (-np.arange(0, turned, 2) / turned)  # (P, R/2)
    return rows.reshape(positions.shape), np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def cache_write(engine: Engine, config: Config, tensors: Tensors, want: Sequence[str]) -> Tensors:
    """TensorScatter on the last axis but one."""
    inputs = {"past_cache": tensors["cache"], "update": tensors["update"]}
    if "write_indices" in tensors:
        inputs["write_indices"] = tensors["write_indices"]
    attributes = {"axis": -2, "mode": "circular" if config.get("circular") else "linear"}
    (present,) = engine.run_node("TensorScatter", 24, list(inputs), inputs, ["present_cache"], attributes)
    return {"output": present}


def gated_linear(engine: Engine, config: Config, tensors: Tensors, want: Sequence[str]) -> Tensors:
    """LinearAttention, with the heads side by side. Its scale 0 means none, so ours of 0 cannot be said."""
    if config.get("scale") == 0:
        raise Unsupported("scale of 0")
    q = tensors["q"]
    Hkv = tensors["k"].shape[1]
    inputs = {"query": pack(q), "key": pack(tensors["k"]), "value": pack(tensors["v"])}
    inputs |= {"past_state": tensors["state"]} if "state" in tensors else {}
    inputs |= {name: pack(tensors[name]) for name in ("decay", "beta") if name in tensors}
    attributes = {
        "q_num_heads": q.shape[1],
        "kv_num_heads": Hkv,
        "scale": float(config.get("scale") or 0),
        "update_rule": config.get("rule", "linear"),
    }
    slots = ("query", "key", "value", "past_state", "decay", "beta")
    y, state = engine.run_node("LinearAttention", 27, slots, inputs, ["output", "present_state"], attributes)
    B, Hq, T, _ = q.shape
    return {"output": y.reshape(B, T, Hq, tensors["v"].shape[3]).swapaxes(1, 2), "state": state}


def pack(x: np.ndarray) -> np.ndarray:
    """(B, H, T, n) as (B, T, H·n)."""
    B, H, T, n = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * n)


def layer_norm(engine: Engine, config: Config, tensors: Tensors, want: Sequence[str]) -> Tensors:
    """LayerNormalization over the last axis; its statistics are float32."""
    x = tensors["x"]
    inputs = {"X": x, "Scale": tensors.get("weight", np.ones(x.shape[-1:], x.dtype))}
    inputs |= {"B": tensors["bias"]} if "bias" in tensors else {}
    outputs = ["Y", "Mean", "InvStdDev"]
    statistics = dict.fromkeys(outputs[1:], TensorProto.FLOAT)
    found = engine.run_node("LayerNormalization", 17, list(inputs), inputs, outputs, eps(config), statistics)
    y, mean, inv_std = found[0], *(part.reshape(x.shape[:-1]).astype(x.dtype) for part in found[1:])
    return {"output": y, "mean": mean, "inv_std": inv_std}


def rms_norm(engine: Engine, config: Config, tensors: Tensors, want: Sequence[str]) -> Tensors:
    """RMSNormalization over the last axis."""
    x = tensors["x"]
    inputs = {"X": x, "scale": tensors.get("weight", np.ones(x.shape[-1:], x.dtype))}
    (y,) = engine.run_node("RMSNormalization", 23, list(inputs), inputs, ["Y"], eps(config))
    return {"output": y}


def eps(config: Config) -> dict[str, Any]:
    """The attributes of a norm."""
    return {"axis": -1, "epsilon": float(1e-5 if config.get("eps") is None else config["eps"])}


def gelu(engine: Engine, config: Config, tensors: Tensors, want: Sequence[str]) -> Tensors:
    """Gelu, by either formula."""
    attributes = {"approximate": config.get("approximate") or "none"}
    (y,) = engine.run_node("Gelu", 20, ["X"], {"X": tensors["x"]}, ["Y"], attributes)
    return {"output": y}


def cast(engine: Engine, config: Config, tensors: Tensors, want: Sequence[str]) -> Tensors:
    """Cast to a type that NumPy has as well."""
    if "to" not in config:
        raise InvalidRequest("config: expected to, got nothing")
    known = {"f16": "float16", "f32": "float32", "f64": "float64"}
    if config["to"] not in known:
        raise Unsupported(f"cast.{config['to']}")
    to = known[config["to"]]
    inputs, types = {"input": tensors["x"]}, {"output": TYPES[to]}
    (y,) = engine.run_node("Cast", 13, ["input"], inputs, ["output"], {"to": TYPES[to]}, types)
    return {"output": y}
