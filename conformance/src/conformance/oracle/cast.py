"""Rounding to a float type by exact fractions: the nearest multiple of the step, ties to the even one."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..tensors import Tensors


@dataclass(frozen=True)
class Format:
    """A binary float type: bits of the significand with the hidden one, smallest and largest exponent of a normal."""

    precision: int
    lowest: int
    highest: int


FORMATS = {
    "f16": Format(11, -14, 15),
    "bf16": Format(8, -126, 127),
    "f32": Format(24, -126, 127),
    "f64": Format(53, -1022, 1023),
}


def answer_cast(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """Every element of x, rounded to `to`; float64 holds each value of each type."""
    target = FORMATS[config["to"]]
    x = inputs["x"].astype(np.float64)
    output = [round_exactly(value, target) for value in x.ravel().tolist()]
    return {"output": np.array(output, np.float64).reshape(x.shape)}


def round_exactly(x: float, target: Format) -> float:
    """x to the nearest value of the target, ties to even; infinite from the largest value plus half a step on."""
    if x == 0 or not math.isfinite(x):
        return x
    size = abs(Fraction(x))
    exponent = max(math.frexp(x)[1] - 1, target.lowest)  # below the normals the step no longer shrinks
    step = Fraction(2) ** (exponent - target.precision + 1)
    rounded = round(size / step) * step  # round of a Fraction takes a tie to the even integer
    if rounded >= Fraction(2) ** (target.highest + 1):
        return math.copysign(math.inf, x)
    return math.copysign(float(rounded), x)
