"""The bounds of GELU, SwiGLU and ReLU."""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded
from .elementwise import erf, multiply, sigmoid, tanh

# Roundings of the polynomial inside tanh: the cube (2), its coefficient (rounded to the type) and product, the sum, the
# root of 2/π and its product.
TANH_ROUNDINGS = 8


def bound_gelu(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op gelu: an exact x."""
    x = arithmetic.exact(inputs["x"])
    return {"output": propagate_gelu(arithmetic, x, config.get("approximate") or "none").error}


def bound_swiglu(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op swiglu: exact a and b."""
    alpha = 1.0 if config.get("alpha") is None else float(config["alpha"])
    a, b = arithmetic.exact(inputs["a"]), arithmetic.exact(inputs["b"])
    return {"output": propagate_swiglu(arithmetic, a, b, alpha).error}


def propagate_gelu(arithmetic: Arithmetic, x: Bounded, approximate: str) -> Bounded:
    """x/2 (1 + f(z)), f being erf or tanh. Where f is near -1 the sum loses its digits, and the bound is that wide."""
    if approximate == "none":
        f = erf(arithmetic, _rounded(arithmetic, arithmetic.scale(x, 1 / math.sqrt(2)), 2))
    else:
        f = tanh(arithmetic, _rounded(arithmetic, _polynomial(x), TANH_ROUNDINGS))
    gate = arithmetic.add(f, arithmetic.exact(np.ones(())))
    return multiply(arithmetic, arithmetic.scale(x, 0.5), gate)


def propagate_swiglu(arithmetic: Arithmetic, a: Bounded, b: Bounded, alpha: float = 1.0) -> Bounded:
    """a sigmoid(alpha a) b; alpha rounds to the type, and its product."""
    gate = sigmoid(arithmetic, _rounded(arithmetic, arithmetic.scale(a, alpha), 2))
    return multiply(arithmetic, multiply(arithmetic, a, gate), b)


def propagate_relu(x: Bounded) -> Bounded:
    """max(x, 0): no rounding, and the ends of the interval bound it."""
    value = np.maximum(x.value, 0)
    high, low = np.maximum(x.value + x.error, 0), np.maximum(x.value - x.error, 0)
    return Bounded(value, np.maximum(high - value, value - low))


def _polynomial(x: Bounded) -> Bounded:
    """sqrt(2/π) (x + 0.044715 x³), rising: its ends bound it."""

    def p(z: np.ndarray) -> np.ndarray:
        return np.asarray(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))

    value = p(x.value)
    return Bounded(value, np.maximum(p(x.value + x.error) - value, value - p(x.value - x.error)))


def _rounded(arithmetic: Arithmetic, x: Bounded, roundings: int) -> Bounded:
    """x with so many relative roundings more: all its terms have the same sign."""
    return Bounded(
        x.value, x.error + arithmetic.gamma(roundings) * (np.abs(x.value) + x.error) + arithmetic.tiny
    )
