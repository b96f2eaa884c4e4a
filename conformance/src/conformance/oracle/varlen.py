"""Packed sequences of different lengths: each an attention of its own."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .sdpa import answer_sdpa


def answer_varlen(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of varlen: output, lse."""
    q, v = inputs["q"], inputs["v"]
    output, lse = np.zeros((*q.shape[:2], v.shape[2])), np.zeros(q.shape[:2])
    for rows, sequence in sequences(inputs):
        answer = answer_sdpa(config, sequence)
        output[rows] = answer["output"][0].swapaxes(0, 1)
        lse[rows] = answer["lse"][0].swapaxes(0, 1)
    return {"output": output, "lse": lse}


def sequences(inputs: Tensors) -> list[tuple[slice, Tensors]]:
    """Of each sequence the rows of q that it owns, and its q, k, v (1, H, T, ·) and offset as sdpa takes them."""
    found = []
    bounds = [inputs[f"cu_seqlens_{name}"].tolist() for name in ("q", "k")]
    for s in range(len(bounds[0]) - 1):
        q_rows, k_rows = (slice(ends[s], ends[s + 1]) for ends in bounds)
        sequence = {
            name: inputs[name][rows].swapaxes(0, 1)[None]
            for name, rows in (("q", q_rows), ("k", k_rows), ("v", k_rows))
        }
        if "q_offset" in inputs:
            sequence["q_offset"] = inputs["q_offset"][s : s + 1]
        found.append((q_rows, sequence))
    return found
