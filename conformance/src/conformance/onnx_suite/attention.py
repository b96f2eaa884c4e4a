"""ONNX's Attention as our sdpa, and its internal cache as our kv_cache: the same semantics under other names.

Letters: B batch, Hq and Hkv heads, Tq and Tk lengths, P past length, D and Dv head sizes.
"""

from typing import Any

import numpy as np

from ..oracle.sdpa import visible_keys
from ..tensors import Tensors
from .calls import AS_IT_IS, Call, Layout, Output, Question, TranslationError, laid_out, packed_heads

# What qk_matmul_output_mode names, as our outputs.
MODES = ("scores", "capped", "biased", "weights")
# Everything that is translated here; anything else in a call is an error, not a thing to overlook.
KNOWN_INPUTS = {"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"}
KNOWN_OUTPUTS = {"Y", "present_key", "present_value", "qk_matmul_output"}
KNOWN_ATTRIBUTES = {
    "is_causal",
    "kv_num_heads",
    "left_window_size",
    "q_num_heads",
    "qk_matmul_output_mode",
    "right_window_size",
    "scale",
    "softcap",
    "softmax_precision",
}
OPEN = -1  # a side of the window
AT_LEAST_F32 = (1, 11)  # softmax_precision: TensorProto's numbers of float and double


def translate_attention(call: Call) -> tuple[Question, ...]:
    """sdpa over all keys, past ones included; and a cache that holds them, where it is wanted as well."""
    check(call)
    wants_cache = {"present_key", "present_value"} & set(call.wanted)
    return (to_sdpa(call), to_present(call)) if wants_cache else (to_sdpa(call),)


def to_sdpa(call: Call) -> Question:
    """The call over all keys."""
    inputs = all_keys(call) | conditions(call)
    config = options(call)
    if past_length(call):
        config["q_offset"] = past_length(call)
    if "nonpad_kv_seqlen" in call.inputs:
        inputs["kv_lengths"] = call.inputs["nonpad_kv_seqlen"]
        inputs["q_offset"] = inputs["kv_lengths"] - inputs["q"].shape[2]
    outputs = {"Y": Output("output", head_layout(call, "Q", "q_num_heads"))}
    if "qk_matmul_output" in call.wanted:
        ours = MODES[call.attributes.get("qk_matmul_output_mode", 0)]
        layout = hidden_by(config, inputs) if ours == "biased" else AS_IT_IS
        outputs["qk_matmul_output"] = Output(ours, layout)
    return Question("sdpa", laid_out(inputs), outputs, config)


def to_present(call: Call) -> Question:
    """What the cache holds after the call: the past is appended, then what is new, and all is read."""
    k, v = (unpack(call, name, "kv_num_heads") for name in "KV")
    inputs, steps = {"k": k, "v": v}, [{"do": "append", "k": "k", "v": "v"}]
    if "past_key" in call.inputs:
        inputs |= {"past_k": call.inputs["past_key"], "past_v": call.inputs["past_value"]}
        steps.insert(0, {"do": "append", "k": "past_k", "v": "past_v"})
    B, Hkv, _, D = k.shape
    config = {
        "kind": "contiguous",
        "batch": B,
        "num_kv_heads": Hkv,
        "head_dim": D,
        "value_dim": v.shape[3],
        "steps": [*steps, {"do": "read", "out": "present"}],
    }
    outputs = {"present_key": Output("present.k"), "present_value": Output("present.v")}
    wanted = {name: outputs[name] for name in outputs if name in call.wanted}
    return Question("kv_cache", laid_out(inputs), wanted, config)


def hidden_by(config: dict[str, Any], inputs: Tensors) -> Layout:
    """ONNX's scores after the bias have every condition in them; ours stand before the mask."""

    def hide(biased: np.ndarray) -> np.ndarray:
        hidden = biased.copy()
        for b, h, i in np.ndindex(*biased.shape[:3]):
            hidden[b, h, i][~visible_keys(config, inputs, b, h, i, biased.shape)] = -np.inf
        return hidden

    return Layout(to_theirs=hide)


def past_length(call: Call) -> int:
    """P, how many positions the internal cache holds before the call; 0 without one."""
    return int(call.inputs["past_key"].shape[2]) if "past_key" in call.inputs else 0


def all_keys(call: Call) -> Tensors:
    """q (B, Hq, Tq, D), and k and v over past and new positions: (B, Hkv, Tk, D) and (B, Hkv, Tk, Dv)."""
    q = unpack(call, "Q", "q_num_heads")
    k, v = (unpack(call, name, "kv_num_heads") for name in "KV")
    if past_length(call):
        k = np.concatenate([call.inputs["past_key"], k], axis=2)
        v = np.concatenate([call.inputs["past_value"], v], axis=2)
    return {"q": q, "k": k, "v": v}


def unpack(call: Call, name: str, heads: str) -> np.ndarray:
    """An input as (B, H, T, n)."""
    return head_layout(call, name, heads).to_ours(call.inputs[name])


def head_layout(call: Call, name: str, heads: str) -> Layout:
    """Rank 4 is as it is; rank 3 is (B, T, H·n), with the heads side by side."""
    x = call.inputs[name]
    return AS_IT_IS if x.ndim == 4 else packed_heads(call.operator, call.attributes.get(heads), x.shape[-1])


def options(call: Call) -> dict[str, Any]:
    """The attributes that are sdpa's config. -1 opens a side of the window, softcap 0 is none."""
    given = call.attributes
    config: dict[str, Any] = {}
    if "scale" in given:
        config["scale"] = given["scale"]
    if given.get("softcap", 0) != 0:
        config["softcap"] = given["softcap"]
    if given.get("is_causal", 0):
        config["causal"] = True
    sides = [given.get(f"{side}_window_size", -1) for side in ("left", "right")]
    if sides != [OPEN, OPEN]:
        config["window"] = [None if side == OPEN else side for side in sides]
    return config


def conditions(call: Call) -> Tensors:
    """attn_mask as our mask or our bias, by its type. Keys that it is too short for are hidden."""
    table = call.inputs.get("attn_mask")
    if table is None:
        return {}
    Tk = past_length(call) + call.inputs["K"].shape[-2]
    missing = [(0, 0)] * (table.ndim - 1) + [(0, Tk - table.shape[-1])]
    if table.dtype == bool:
        return {"mask": np.pad(table, missing)}
    return {"bias": np.pad(table, missing, constant_values=-np.inf)}


def check(call: Call) -> None:
    """Raises TranslationError when the call says something that is not translated."""
    call.check_known(KNOWN_INPUTS, KNOWN_OUTPUTS, KNOWN_ATTRIBUTES)
    precision = call.attributes.get("softmax_precision", 1)
    if precision not in AT_LEAST_F32:
        raise TranslationError(
            f"{call.operator}: softmax_precision: expected float or double, got {precision}"
        )
    rank = 3 if call.inputs["Q"].ndim == 3 else 4
    ranks = {"Q": rank, "K": rank, "V": rank, "past_key": 4, "past_value": 4, "nonpad_kv_seqlen": 1}
    for name, x in call.inputs.items():
        if x.ndim != ranks.get(name, x.ndim):
            raise TranslationError(f"{call.operator}: {name}: expected rank {ranks[name]}, got {x.ndim}")
    if ("past_key" in call.inputs) != ("past_value" in call.inputs):
        raise TranslationError(f"{call.operator}: expected past_key and past_value together")
    if {"past_key", "nonpad_kv_seqlen"} <= set(call.inputs):
        raise TranslationError(f"{call.operator}: expected past_key or nonpad_kv_seqlen, got both")
    check_mask(call)


def check_mask(call: Call) -> None:
    """Raises TranslationError unless attn_mask is of a type that we have, and not longer than the keys."""
    table = call.inputs.get("attn_mask")
    if table is None:
        return
    if table.dtype not in (np.bool_, call.inputs["Q"].dtype):
        raise TranslationError(
            f"{call.operator}: attn_mask: expected bool or the type of Q, got {table.dtype}"
        )
    Tk = past_length(call) + call.inputs["K"].shape[-2]
    if table.ndim == 0 or table.shape[-1] > Tk:
        raise TranslationError(
            f"{call.operator}: attn_mask: expected at most {Tk} keys, got the shape {table.shape}"
        )
