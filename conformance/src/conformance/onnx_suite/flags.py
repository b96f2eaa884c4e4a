"""What a translated call catches, and what it is about, read off the call itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..oracle.sdpa import visible_keys
from ..tensors import Tensors
from .calls import Call, Question

CONDITIONS = ("causal", "window", "mask", "bias", "kv_lengths")
FLOAT64 = 11  # TensorProto's number of double
LARGE = 80.0  # a logit from which on exp overflows a float32, or nearly does


def attention_flags(config: Mapping[str, Any], inputs: Tensors) -> tuple[str, ...]:
    """The kinds of bug that this call shows. `test_onnx_suite.py` commits them one by one and looks."""
    Hq, Tq, D = inputs["q"].shape[1:]
    Hkv, Tk = inputs["k"].shape[1:3]
    causal, window = config.get("causal"), config.get("window")
    offset = config.get("q_offset")
    found = ["Published"]
    if not shown_keys(config, inputs).any(axis=-1).all():
        found.append("FullyMaskedRow")
    if (inputs["v"] == inputs["v"][:, :, :1]).all():  # whatever a query sees, its output is the same
        return tuple(found)
    if inputs["q"].dtype.itemsize < 4:
        found.append("HalfInside")
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


def describe_attention(call: Call, config: Mapping[str, Any], inputs: Tensors) -> str:
    """The call in a line: the operator's version, and whatever is not plain about it."""
    _, Hq, Tq, D = inputs["q"].shape
    _, Hkv, Tk, Dv = inputs["v"].shape
    parts = [f"{Tq} queries, {Tk} keys"]
    if "past_key" in call.inputs:
        parts.append(f"{call.inputs['past_key'].shape[2]} of them past")
    if call.inputs["Q"].ndim == 3:
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
            parts.append(f"{kind} {list(call.inputs['attn_mask'].shape)}")
    parts += [f"{name} {config[name]:.3g}" for name in ("scale", "softcap") if name in config]
    if call.attributes.get("softmax_precision") == FLOAT64:
        parts.append("softmax asked for in float64")
    if "qk_matmul_output" in call.wanted:
        parts.append(f"and qk_matmul_output in mode {call.attributes.get('qk_matmul_output_mode', 0)}")
    return f"ONNX Attention {call.version}: {', '.join(parts)}"


def describe(call: Call) -> str:
    """Any other call in a line: its shapes, and the attributes that say something."""
    shapes = [f"{name} {list(x.shape)}" for name, x in call.inputs.items()]
    said = [
        f"{name} {_show(value)}" for name, value in call.attributes.items() if not name.endswith("_heads")
    ]
    return f"ONNX {call.operator} {call.version}: {', '.join(shapes + said)}"


def _show(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def flags_of(question: Question) -> tuple[str, ...]:
    """What a question to any op shows beside the plain formula."""
    if question.op == "sdpa":
        return attention_flags(question.config, question.inputs)
    return ("Published", *other_flags(question))


def other_flags(question: Question) -> list[str]:
    """Of the ops beside sdpa."""
    config, inputs = question.config, question.inputs
    if question.op == "softmax":
        return ["Overflow"] if np.abs(inputs["x"]).max() > LARGE else []
    if question.op == "rope":
        # With neighbours as pairs, those of D begin with those of R.
        partial = ["RopePartial"] if config.get("rotary_dim") and not config.get("interleaved") else []
        return ["RopePairing", "RopePosition", *partial]
    if question.op == "cache_write":
        return ["CircularWrite"] if config.get("circular") else []
    if question.op == "gated_linear":
        found = ["GqaTile"] if 1 < inputs["k"].shape[1] < inputs["q"].shape[1] else []
        return [*found, "StateCarried"] if inputs.get("state", np.zeros(1)).any() else found
    return {"layer_norm": ["VarianceDivisor"], "gelu": ["GeluForm"], "swiglu": ["GateOrder"]}.get(
        question.op, []
    )
