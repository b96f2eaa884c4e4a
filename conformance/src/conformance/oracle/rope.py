"""Rotary position embedding (Su et al., "RoFormer", 2021): its turns as complex numbers, its pairs one by one."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .rope_scaling import attention_factor, frequencies


def answer_rope(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """All outputs of rope: output, cos, sin."""
    x = inputs["x"].astype(np.float64)
    R = x.shape[3] if config.get("rotary_dim") is None else int(config["rotary_dim"])
    positions = positions_of(config, inputs, x.shape[0], x.shape[2])
    if "cos" in inputs:
        cos, sin = (inputs[name].astype(np.float64)[positions] for name in ("cos", "sin"))
    else:
        cos, sin = rotary_tables(config, positions, R)
    return {"output": rotate(x, cos, sin, bool(config.get("interleaved"))), "cos": cos, "sin": sin}


def positions_of(config: dict[str, Any], inputs: Tensors, B: int, T: int) -> np.ndarray:
    """int64 (B, T): as given, or counted from the offset."""
    counted = np.arange(T) + int(config.get("offset") or 0)
    return np.asarray(inputs.get("positions", np.broadcast_to(counted, (B, T))))


def rotary_tables(config: dict[str, Any], positions: np.ndarray, R: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin (B, T, R/2), the attention factor in them, row by row: a row's length may set its frequencies."""
    turns = np.zeros((*positions.shape, R // 2), np.complex128)
    for b, row in enumerate(positions):
        if row.size:
            angles = np.outer(row, frequencies(config, R, int(row.max()) + 1))
            turns[b] = attention_factor(config) * np.exp(1j * angles)
    return turns.real, turns.imag


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """x (B, H, T, D) with each pair of its first R channels, as one complex number, multiplied by its turn."""
    half = cos.shape[-1]
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]
    output = x.copy()
    for i, (a, b) in enumerate(pairs):
        # By hand, not with complex numbers: NaN in one part of a pair is a matter of ordinary arithmetic.
        c, s = cos[:, None, :, i], sin[:, None, :, i]
        output[..., a], output[..., b] = x[..., a] * c - x[..., b] * s, x[..., b] * c + x[..., a] * s
    return output
