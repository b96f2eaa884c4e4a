"""A stack of blocks between embeddings and logits, token by token at both ends."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .block import answer_block, below, norm


def answer_transformer(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output, logits."""
    tokens = inputs["tokens"]
    B, T = tokens.shape
    x = np.zeros((B, T, inputs["embedding"].shape[1]))
    for b, t in np.ndindex(B, T):
        x[b, t] = inputs["embedding"][tokens[b, t]]
        if "position_embedding" in inputs:
            x[b, t] += inputs["position_embedding"][t]
        if "segments" in inputs:
            x[b, t] += inputs["segment_embedding"][inputs["segments"][b, t]]
    if below(inputs, "embedding_norm."):
        x = norm(config, below(inputs, "embedding_norm."), x)
    lengths = {name: inputs[name] for name in ("kv_lengths",) if name in inputs}
    for number in range(int(config["num_layers"])):
        x = answer_block(config, below(inputs, f"layers.{number}.") | lengths | {"x": x})["output"]
    if below(inputs, "final_norm."):
        x = norm(config, below(inputs, "final_norm."), x)
    unembedding = inputs.get("unembedding", inputs["embedding"]).astype(np.float64)
    return {"output": x, "logits": np.einsum("btc,vc->btv", x, unembedding)}
