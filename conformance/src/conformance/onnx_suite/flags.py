"""What a translated vector catches, and what it is about, read off the call itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..oracle.sdpa import visible_keys
from .vectors import Tensors, Vector

CONDITIONS = ("causal", "window", "mask", "bias", "kv_lengths")
LARGE = 80.0  # a logit from which on exp overflows a float32, or nearly does


def flags_of(config: Mapping[str, Any], inputs: Tensors) -> tuple[str, ...]:
    """The kinds of bug that this call shows. `test_onnx_suite.py` commits them one by one and looks."""
    Hq, Tq, D = inputs["q"].shape[1:]
    Hkv, Tk = inputs["k"].shape[1:3]
    causal, window = config.get("causal"), config.get("window")
    offset = config.get("q_offset")
    found = ["Published"]
    if 1 < Hkv < Hq:
        found.append("GqaTile")
    if inputs["v"].shape[3] != D:
        found.append("ValueDim")
    if causal and offset is None and "q_offset" not in inputs and Tq != Tk:
        found.append("CausalAlignment")
    if causal and offset:
        found.append("ChunkedPrefill")
    if window:
        found.append("WindowOffByOne")
    if "mask" in inputs:
        found.append("MaskPolarity")
    if "bias" in inputs:
        found.append("BiasIsNotMask")
    if config.get("softcap") and "bias" in inputs and np.isneginf(inputs["bias"]).any():
        found.append("SoftcapOrder")
    if is_composed(config, inputs):
        found.append("MaskComposition")
    if "kv_lengths" in inputs and len(set(inputs["kv_lengths"].tolist())) > 1:
        found.append("RowIndependence")
    if any(name in inputs and inputs[name].ndim in (1, 3) for name in ("mask", "bias")):
        found.append("MaskBroadcast")
    if not shown_keys(config, inputs).any(axis=-1).all():
        found.append("FullyMaskedRow")
    return tuple(found)


def is_composed(config: Mapping[str, Any], inputs: Tensors) -> bool:
    """Whether there are several conditions, and one that hides what the others do not."""
    given = {**config, **inputs}
    names = [name for name in CONDITIONS if given.get(name) is not None]
    shown = shown_keys(config, inputs)
    for name in names:
        rest_config, rest = ({k: v for k, v in part.items() if k != name} for part in (config, inputs))
        if len(names) > 1 and (shown_keys(rest_config, rest) != shown).any():
            return True
    return False


def shown_keys(config: Mapping[str, Any], inputs: Tensors) -> np.ndarray:
    """bool (B, Hq, Tq, Tk): what neither a condition nor a bias of -inf hides."""
    shape = (*inputs["q"].shape[:3], inputs["k"].shape[2])
    shown = np.broadcast_to(inputs.get("bias", np.float32(0)) != -np.inf, shape).copy()
    for b, h, i in np.ndindex(*shape[:3]):
        shown[b, h, i] &= visible_keys(dict(config), inputs, b, h, i, shape)
    return shown


def describe(vector: Vector, config: Mapping[str, Any], inputs: Tensors) -> str:
    """The call in a line: the operator's version, and whatever is not plain about it."""
    _, Hq, Tq, D = inputs["q"].shape
    _, Hkv, Tk, Dv = inputs["v"].shape
    parts = [f"{Tq} queries, {Tk} keys"]
    if "past_key" in vector.inputs:
        parts.append(f"{vector.inputs['past_key'].shape[2]} of them past")
    if vector.inputs["Q"].ndim == 3:
        parts.append("heads packed side by side")
    if Hq != Hkv:
        parts.append(f"{Hq} query heads on {Hkv}")
    if Dv != D:
        parts.append(f"values of {Dv}, keys of {D}")
    if "kv_lengths" in inputs:
        parts.append(f"a cache of the caller's, lengths {inputs['kv_lengths'].tolist()}")
    parts += ["causal"] if config.get("causal") else []
    parts += [f"window {config['window']}".replace("None", "open")] if config.get("window") else []
    for name, kind in (("mask", "boolean mask"), ("bias", "float mask")):
        if name in inputs:
            parts.append(f"{kind} {list(vector.inputs['attn_mask'].shape)}")
    parts += [f"{name} {config[name]:.3g}" for name in ("scale", "softcap") if name in config]
    if "softmax_precision" in vector.attributes:
        parts.append("softmax asked for in float64")
    return f"ONNX Attention {vector.opset}: {', '.join(parts)}"


def softmax_flags(x: np.ndarray) -> tuple[str, ...]:
    """What a softmax case shows beside the plain formula."""
    return ("Published", "Overflow") if np.abs(x).max() > LARGE else ("Published",)
