"""ONNX's RotaryEmbedding as our rope with tables.

Letters: B batch, H heads, T length, D head size, R channels that turn, P positions in a table.
"""

import numpy as np

from .calls import AS_IT_IS, Call, Output, Question, TranslationError, laid_out, packed_heads

KNOWN_INPUTS = {"X", "cos_cache", "sin_cache", "position_ids"}
KNOWN_ATTRIBUTES = {"interleaved", "num_heads", "rotary_embedding_dim"}


def translate_rotary_embedding(call: Call) -> tuple[Question, ...]:
    """The same tables and positions; without positions the tables are one row a token, which we number."""
    call.check_known(KNOWN_INPUTS, {"Y"}, KNOWN_ATTRIBUTES)
    x, cos, sin = (call.inputs[name] for name in ("X", "cos_cache", "sin_cache"))
    packed = x.ndim == 3
    layout = packed_heads(call.operator, call.attributes.get("num_heads"), x.shape[2]) if packed else AS_IT_IS
    inputs = {"x": layout.to_ours(x), "cos": cos, "sin": sin}
    if "position_ids" in call.inputs:
        inputs["positions"] = call.inputs["position_ids"]
    else:
        inputs |= numbered(cos, sin)
    if any(inputs[name].ndim != 2 for name in ("cos", "sin")):
        raise TranslationError(f"{call.operator}: expected tables of rank 2 beside position_ids, 3 without")
    config = {"interleaved": True} if call.attributes.get("interleaved", 0) else {}
    if call.attributes.get("rotary_embedding_dim", 0):
        config["rotary_dim"] = call.attributes["rotary_embedding_dim"]
    return (Question("rope", laid_out(inputs), {"Y": Output("output", layout)}, config),)


def numbered(cos: np.ndarray, sin: np.ndarray) -> dict[str, np.ndarray]:
    """Tables (B, T, R/2) as (B·T, R/2), in which token (b, t) is at position b·T + t."""
    if cos.ndim != 3 or cos.shape != sin.shape:
        raise TranslationError("RotaryEmbedding: expected tables (B, T, R/2) where there are no position_ids")
    B, T, pairs = cos.shape
    return {
        "cos": cos.reshape(B * T, pairs),
        "sin": sin.reshape(B * T, pairs),
        "positions": np.arange(B * T, dtype=np.int64).reshape(B, T),
    }
