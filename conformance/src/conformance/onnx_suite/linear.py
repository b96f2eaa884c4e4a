"""ONNX's LinearAttention as our gated_linear: the same four rules, heads unpacked.

Letters: B batch, Hq and Hkv heads, T length, D and Dv head sizes.
"""

import numpy as np

from .calls import Call, Output, Question, TranslationError, laid_out, packed_heads

KNOWN_INPUTS = {"query", "key", "value", "past_state", "decay", "beta"}
KNOWN_ATTRIBUTES = {"chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule"}
RULES = {"linear", "gated", "delta", "gated_delta"}


def translate_linear_attention(call: Call) -> tuple[Question, ...]:
    """chunk_size says how an implementation may go about it, not what comes out: it becomes nothing."""
    call.check_known(KNOWN_INPUTS, {"output", "present_state"}, KNOWN_ATTRIBUTES)
    queries, keys = (call.attributes.get(name) for name in ("q_num_heads", "kv_num_heads"))
    given = {name: call.inputs[name] for name in ("query", "key", "value")}
    if any(x.ndim != 3 for x in given.values()):
        raise TranslationError(f"{call.operator}: expected query, key and value of rank 3")
    q = packed_heads(call.operator, queries, given["query"].shape[2])
    k, v = (packed_heads(call.operator, keys, given[name].shape[2]) for name in ("key", "value"))
    inputs = {"q": q.to_ours(given["query"]), "k": k.to_ours(given["key"]), "v": v.to_ours(given["value"])}
    if "past_state" in call.inputs:
        inputs["state"] = call.inputs["past_state"]
    if "decay" in call.inputs:
        decay = call.inputs["decay"]
        one_a_head = decay.shape[2] == keys
        inputs["decay"] = per_head(decay) if one_a_head else k.to_ours(decay)
    if "beta" in call.inputs:
        inputs["beta"] = per_head(call.inputs["beta"])
    config = {"rule": call.choice("update_rule", "gated_delta", RULES)}
    if call.attributes.get("scale", 0):
        config["scale"] = call.attributes["scale"]
    outputs = {"output": Output("output", q), "present_state": Output("state")}
    wanted = {name: outputs[name] for name in call.wanted}
    return (Question("gated_linear", laid_out(inputs), wanted, config),)


def per_head(x: np.ndarray) -> np.ndarray:
    """(B, T, H) as (B, H, T, 1)."""
    return x.swapaxes(1, 2)[..., None]
