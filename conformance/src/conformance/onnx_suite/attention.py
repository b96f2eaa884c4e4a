"""ONNX's Attention as our sdpa, and its internal cache as our kv_cache: the same semantics under other names.

Letters: B batch, Hq and Hkv heads, Tq and Tk lengths, P past length, D and Dv head sizes.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ..cases.draft import Draft
from ..cases.script import Script
from .flags import describe, flags_of
from .vectors import Tensors, Vector, VectorError

# What qk_matmul_output_mode names, as our outputs.
MODES = ("scores", "capped", "biased", "weights")
# Everything that is translated here; anything else in a vector is an error, not a thing to overlook.
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
AT_LEAST_F32 = (1, 11)  # softmax_precision: TensorProto's numbers of float and double


def to_sdpa(vector: Vector) -> tuple[Draft, Tensors]:
    """The call over all keys, past ones included, and ONNX's answers under our names."""
    check_known(vector)
    inputs = all_keys(vector) | conditions(vector)
    config = options(vector)
    if past_length(vector):
        config["q_offset"] = past_length(vector)
    if "nonpad_kv_seqlen" in vector.inputs:
        inputs["kv_lengths"] = vector.inputs["nonpad_kv_seqlen"]
        inputs["q_offset"] = inputs["kv_lengths"] - inputs["q"].shape[2]
    answers = {"output": unpack(vector, "Y", "q_num_heads")}
    note = describe(vector, config, inputs)
    if "qk_matmul_output" in vector.outputs:
        mode = vector.attributes.get("qk_matmul_output_mode", 0)
        answers[MODES[mode]] = vector.outputs["qk_matmul_output"]
        note += f", and qk_matmul_output in mode {mode}"
    draft = Draft(
        id=f"onnx/attention/{vector.name}",
        op="sdpa",
        inputs=inputs,
        config=config,
        want=tuple(answers),
        flags=flags_of(config, inputs),
        note=note,
        dtypes=("f32",),
    )
    return draft, answers


def to_cache(vector: Vector) -> tuple[Draft, Tensors]:
    """The same call on a cache that holds the past: append it, append what is new, attend, read what is present."""
    check_known(vector)
    past, q = past_length(vector), unpack(vector, "Q", "q_num_heads")
    k, v = (unpack(vector, name, "kv_num_heads") for name in "KV")
    B, Hkv, new, D = k.shape
    script = Script(vector.name, B, q.shape[1], Hkv, D, v.shape[3], capacity=past + new)
    script.append(past, k=vector.inputs["past_key"], v=vector.inputs["past_value"]).append(new, k=k, v=v)
    asked: dict[str, Any] = options(vector) | conditions(vector)
    script.attend(q.shape[2], q=q, lse=False, q_offset=past, **asked).read()
    config, inputs = options(vector) | {"q_offset": past}, all_keys(vector) | conditions(vector)
    draft = script.draft(
        f"{describe(vector, config, inputs)}; on a cache that holds the past and is read afterwards",
        *dict.fromkeys([*flags_of(config, inputs), "StaleReset"]),
    )
    answers = {
        "out0": unpack(vector, "Y", "q_num_heads"),
        "read0.k": vector.outputs["present_key"],
        "read0.v": vector.outputs["present_value"],
    }
    answers |= {f"again.{name}": x for name, x in answers.items()}  # the replay after a reset
    return replace(draft, id=f"onnx/cache/{vector.name}", dtypes=("f32",)), answers


def past_length(vector: Vector) -> int:
    """P, how many positions the internal cache holds before the call; 0 without one."""
    return int(vector.inputs["past_key"].shape[2]) if "past_key" in vector.inputs else 0


def all_keys(vector: Vector) -> Tensors:
    """q (B, Hq, Tq, D), and k and v over past and new positions: (B, Hkv, Tk, D) and (B, Hkv, Tk, Dv)."""
    q = unpack(vector, "Q", "q_num_heads")
    k, v = (unpack(vector, name, "kv_num_heads") for name in "KV")
    if past_length(vector):
        k = np.concatenate([vector.inputs["past_key"], k], axis=2)
        v = np.concatenate([vector.inputs["past_value"], v], axis=2)
    return {"q": q, "k": k, "v": v}


def unpack(vector: Vector, name: str, heads: str) -> np.ndarray:
    """A tensor as (B, H, T, n): rank 3 is (B, T, H·n), with the heads side by side."""
    x = vector.inputs[name] if name in vector.inputs else vector.outputs[name]
    if x.ndim == 4:
        return x
    B, T, _ = x.shape
    return np.ascontiguousarray(x.reshape(B, T, vector.attributes[heads], -1).swapaxes(1, 2))


def options(vector: Vector) -> dict[str, Any]:
    """The attributes that are sdpa's config. -1 opens a side of the window, softcap 0 is none."""
    given = vector.attributes
    config: dict[str, Any] = {}
    if "scale" in given:
        config["scale"] = given["scale"]
    if given.get("softcap", 0) > 0:
        config["softcap"] = given["softcap"]
    if given.get("is_causal", 0) == 1:
        config["causal"] = True
    sides = [given.get(f"{side}_window_size", -1) for side in ("left", "right")]
    if max(sides) >= 0:
        config["window"] = [None if side < 0 else side for side in sides]
    return config


def conditions(vector: Vector) -> Tensors:
    """attn_mask as our mask or our bias, by its type. Keys that it is too short for are hidden."""
    table = vector.inputs.get("attn_mask")
    if table is None:
        return {}
    Tk = past_length(vector) + vector.inputs["K"].shape[-2]
    missing = [(0, 0)] * (table.ndim - 1) + [(0, Tk - table.shape[-1])]
    if table.dtype == bool:
        return {"mask": np.pad(table, missing)}
    return {"bias": np.pad(table, missing, constant_values=-np.inf)}


def check_known(vector: Vector) -> None:
    """Raises VectorError when the vector says something that is not translated."""
    strange = set(vector.inputs) - KNOWN_INPUTS | set(vector.outputs) - KNOWN_OUTPUTS
    strange |= set(vector.attributes) - KNOWN_ATTRIBUTES
    if strange:
        raise VectorError(f"{vector.name}: not translated: {', '.join(sorted(strange))}")
    precision = vector.attributes.get("softmax_precision", 1)
    if precision not in AT_LEAST_F32:
        raise VectorError(f"{vector.name}: softmax_precision: expected float or double, got {precision}")
