"""The bounds of rope: uncertain turns, and the products with them."""

from typing import Any

import numpy as np

from ..oracle.rope import positions_of
from ..tensors import Tensors
from .angles import bound_attention_factor, bound_frequencies, bound_turns
from .arithmetic import Arithmetic, Bounded
from .elementwise import multiply, subtract


def bound_rope(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op rope: exact x."""
    cos, sin = _tables(arithmetic, config, inputs, inputs["x"].shape)
    output = propagate_rope(arithmetic, config, inputs, arithmetic.exact(inputs["x"]))
    return {"output": output.error, "cos": cos.error, "sin": sin.error}


def propagate_rope(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors, x: Bounded) -> Bounded:
    """x (B, H, T, D), which may be uncertain, turned to its positions: those among the inputs, or counted."""
    cos, sin = (
        Bounded(*(part[:, None] for part in turn))
        for turn in _tables(arithmetic, config, inputs, x.value.shape)
    )  # (B, 1, T, R/2)
    half = cos.value.shape[-1]
    first, second = slice(0, half), slice(half, 2 * half)
    if config.get("interleaved"):
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    a, b = (Bounded(x.value[..., part], x.error[..., part]) for part in (first, second))
    turned_a = subtract(arithmetic, multiply(arithmetic, a, cos), multiply(arithmetic, b, sin))
    turned_b = arithmetic.add(multiply(arithmetic, a, sin), multiply(arithmetic, b, cos))
    value, error = x.value.copy(), x.error.copy()
    for part, turned in ((first, turned_a), (second, turned_b)):
        value[..., part], error[..., part] = turned
    return Bounded(value, error)


def _tables(
    arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors, shape: tuple[int, ...]
) -> tuple[Bounded, Bounded]:
    """cos and sin (B, T, R/2): rows of the tables given, which are exact, or computed row by row."""
    B, _, T, D = shape
    positions = positions_of(config, inputs, B, T)
    if "cos" in inputs:
        return arithmetic.exact(inputs["cos"][positions]), arithmetic.exact(inputs["sin"][positions])
    R = D if config.get("rotary_dim") is None else int(config["rotary_dim"])
    turns = np.zeros((4, B, T, R // 2))
    for b, row in enumerate(positions):
        if row.size:
            frequency = bound_frequencies(config, R, int(row.max()) + 1)
            cos, sin = bound_turns(arithmetic, frequency, row, bound_attention_factor(config))
            turns[:, b] = cos.value, cos.error, sin.value, sin.error
    return Bounded(turns[0], turns[1]), Bounded(turns[2], turns[3])
