"""The bounds of positions that are added to something: sinusoidal, alibi, relative_bias."""

from typing import Any

import numpy as np

from ..oracle.positions import answer_alibi, answer_relative_bias, answer_sinusoidal
from ..oracle.rope import positions_of
from ..tensors import Tensors
from .angles import F64, bound_frequencies, bound_turns, round_once
from .arithmetic import Arithmetic, Bounded
from .elementwise import multiply

# Of 2^x with x a quotient times a whole number: both are rounded, relative to |x| <= 8, and d(2^x) = ln 2 · 2^x dx with
# ln 2 < 1, so at most 2 · 8 roundings of the slope.
EXPONENT_ROUNDINGS = 16


def bound_sinusoidal(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op sinusoidal: the table as uncertain as its angles, then one addition."""
    B, T, C = inputs["x"].shape
    positions = positions_of(config, inputs, B, T)
    frequency = bound_frequencies({"base": config.get("base")}, C, 0)
    cos, sin = bound_turns(arithmetic, frequency, positions, F64.exact(np.array(1.0)))
    axis = (B, T, C)
    order = [sin.error, cos.error]
    error = np.concatenate(order, -1) if config.get("halves") else np.stack(order, -1).reshape(axis)
    table = Bounded(answer_sinusoidal(config, inputs)["table"], error)
    output = arithmetic.add(arithmetic.exact(inputs["x"]), table)
    return {"output": output.error, "table": table.error}


def bound_alibi(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op alibi: a power of two in float64, rounded; times a whole distance; added."""
    exact = answer_alibi(config, inputs)
    H, Tq, Tk = exact["bias"].shape
    # A port may also multiply its way from head to head: at most H products, each with a rounding of its own and that
    # of the first slope once more, 2 H of 2^-53. That is H of F64.u, which is twice 2^-53.
    error = exact["slopes"] * (F64.elementary + F64.gamma(EXPONENT_ROUNDINGS + H))
    slopes = round_once(arithmetic, Bounded(exact["slopes"], error))
    p = np.arange(Tq)[:, None] + int(config.get("q_offset") or 0)
    distances = arithmetic.exact(-np.abs(p - np.arange(Tk)))
    bias = multiply(arithmetic, Bounded(*(part[:, None, None] for part in slopes)), distances)
    bias = Bounded(bias.value, np.where(distances.value == 0, 0, bias.error))
    output = arithmetic.add(arithmetic.exact(inputs["scores"]), bias)
    return {"output": output.error, "slopes": slopes.error, "bias": bias.error}


def bound_relative_bias(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op relative_bias: one addition; a bucket is a whole number."""
    output = answer_relative_bias(config, inputs)["output"]
    return {"output": arithmetic.u * np.abs(np.where(np.isfinite(output), output, 0))}
