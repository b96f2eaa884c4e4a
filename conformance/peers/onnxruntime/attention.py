"""Our sdpa as one node of ONNX's Attention: docs/onnx.md read from right to left.

Where ONNX has a notion for what is asked, its own is used: past keys for an offset, nonpad_kv_seqlen for lengths. An
offset that it cannot say (negative, different per row) becomes a boolean mask, so that the question stays the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from engine import Engine, Tensors, Unsupported

SLOTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
# Our outputs, and the qk_matmul_output_mode that asks for them.
OUTPUTS = {"output": None, "scores": 0, "capped": 1, "biased": 2, "weights": 3}
FEATURES = {
    *("causal", "window", "q_offset", "q_offset_tensor", "kv_lengths", "mask", "bias"),
    *("scale", "softcap", "gqa", "value_dim", "scores", "capped", "biased", "weights"),
}

# Timed is the opset that onnxruntime 1.32 has a kernel for. It takes 25 apart into smaller operators, which takes
# several times as long.
WITH_A_KERNEL = 24
WINDOWS = {"left_window_size", "right_window_size"}  # which came with 25


def attend(engine: Engine, config: Mapping[str, Any], tensors: Tensors, want: Sequence[str]) -> Tensors:
    """The wanted outputs: a run for the output, and one for each intermediate."""
    for name in ("sinks", "dropout"):
        if name in tensors or config.get(name) is not None:
            raise Unsupported(name)
    found = {}
    for name in want:
        if name == "biased":  # ONNX's has the mask in it, ours stands before step 4
            plain = {key: config[key] for key in ("scale", "softcap") if config.get(key) is not None}
            rest = {key: x for key, x in tensors.items() if key in ("q", "k", "v", "bias")}
            found[name] = run_attention(engine, plain, rest, OUTPUTS[name])
        else:
            found[name] = run_attention(engine, config, tensors, OUTPUTS[name])
    return found


def run_attention(
    engine: Engine, config: Mapping[str, Any], tensors: Tensors, mode: int | None
) -> np.ndarray:
    """One node, run: Y, or with a mode the fourth output."""
    inputs, attributes = to_onnx(config, tensors)
    if mode is not None:
        attributes["qk_matmul_output_mode"] = mode
    present = ["present_key", "present_value"] if "past_key" in inputs else ["", ""]
    outputs = ["Y"] if mode is None and "past_key" not in inputs else ["Y", *present]
    outputs += [] if mode is None else ["qk_matmul_output"]
    opset = engine.attention
    if engine.plan is not None and not WINDOWS & set(attributes):
        opset = min(opset, WITH_A_KERNEL)
    found = engine.run_node("Attention", opset, SLOTS, inputs, outputs, attributes)
    return found[0] if mode is None else found[-1]


def to_onnx(config: Mapping[str, Any], tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """The inputs and attributes of the node."""
    q, k, v = (tensors[name] for name in "qkv")
    Tq, Tk = q.shape[2], k.shape[2]
    inputs = {"Q": q, "K": k, "V": v}
    attributes = {name: float(config[name]) for name in ("scale", "softcap") if config.get(name) is not None}
    left, right = config.get("window") or (None, None)
    placed = {"is_causal": int(bool(config.get("causal")))}
    placed |= {
        f"{name}_window_size": side for name, side in (("left", left), ("right", right)) if side is not None
    }
    positioned = bool(config.get("causal")) or left is not None or right is not None
    lengths = tensors.get("kv_lengths")
    offset = np.asarray(tensors.get("q_offset", config.get("q_offset") or 0))
    mask = tensors.get("mask")

    if lengths is not None and (not positioned or np.array_equal(offset, lengths - Tq)):
        inputs["nonpad_kv_seqlen"] = lengths
        attributes |= placed
    elif lengths is None and (not positioned or not offset.any()):
        attributes |= placed
    elif lengths is None and offset.size == 1 and 0 < offset.item() < Tk:
        past = offset.item()
        inputs |= {"past_key": k[:, :, :past], "past_value": v[:, :, :past]}
        inputs |= {"K": k[:, :, past:], "V": v[:, :, past:]}
        attributes |= placed
    else:
        shown = positions(bool(config.get("causal")), left, right, offset, lengths, (q.shape[0], Tq, Tk))
        mask = shown if mask is None else shown & mask
    table = join(mask, tensors.get("bias"), Tk)
    if table is not None:
        inputs["attn_mask"] = table
    return inputs, attributes


def positions(
    causal: bool,
    left: int | None,
    right: int | None,
    offset: np.ndarray,
    lengths: np.ndarray | None,
    sizes: tuple[int, int, int],
) -> np.ndarray:
    """bool (B, 1, Tq, Tk): what causal, window and lengths leave visible."""
    B, Tq, Tk = sizes
    p = np.arange(Tq)[:, None] + np.broadcast_to(offset.ravel(), B)[:, None, None, None]  # (B, 1, Tq, 1)
    j = np.arange(Tk)
    shown = np.ones((B, 1, Tq, Tk), bool)
    if causal:
        shown &= j <= p
    if left is not None:
        shown &= j >= p - left
    if right is not None:
        shown &= j <= p + right
    if lengths is not None:
        shown &= j < lengths[:, None, None, None]
    return shown


def join(mask: np.ndarray | None, bias: np.ndarray | None, Tk: int) -> np.ndarray | None:
    """One attn_mask of both. Its last axis is whole: a shorter one means hidden keys to ONNX, not repeated ones."""
    if bias is None:
        table = mask
    elif mask is None:
        table = bias
    else:
        table = np.where(mask, bias, bias.dtype.type(-np.inf))
    if table is None:
        return None
    return np.broadcast_to(table, (*table.shape[:-1], Tk)) if table.ndim else np.broadcast_to(table, (Tk,))
