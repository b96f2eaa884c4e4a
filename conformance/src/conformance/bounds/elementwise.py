"""Operations on uncertain arrays that act element by element, and the sums over an axis.

Each takes values x with |x' - x| <= e and bounds |fl(f(x')) - f(x)|: what f makes of the interval [x - e, x + e], which
is exact for a monotone f, and the rounding of f itself. `tiny` covers a result that underflows.
"""

import math
from collections.abc import Callable

import numpy as np

from .arithmetic import Arithmetic, Bounded

Function = Callable[[np.ndarray], np.ndarray]

_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def negate(x: Bounded) -> Bounded:
    """-x, which is exact."""
    return Bounded(-x.value, x.error)


def subtract(arithmetic: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    """a - b, rounded once: a + (-b)."""
    return arithmetic.add(a, negate(b))


def multiply(arithmetic: Arithmetic, a: Bounded, b: Bounded, roundings: int = 1) -> Bounded:
    """a b. a'b' - ab = a (b' - b) + (a' - a) b', and the product rounds: u |a'b'| with |a'| <= |a| + e_a.

    roundings: more than one where another order of the same product rounds more often.
    """
    size_a, size_b = np.abs(a.value) + a.error, np.abs(b.value) + b.error
    error = np.abs(a.value) * b.error + a.error * size_b
    return Bounded(a.value * b.value, error + arithmetic.gamma(roundings) * size_a * size_b + arithmetic.tiny)


def divide(arithmetic: Arithmetic, a: Bounded, b: Bounded, roundings: int = 1) -> Bounded:
    """a / b. a'/b' - a/b = ((a' - a) - (a/b)(b' - b)) / b', with |b'| >= |b| - e_b; no bound when that reaches 0.

    roundings: 2 covers the product with a rounded reciprocal.
    """
    value = a.value / b.value
    smallest = np.abs(b.value) - b.error
    error = (a.error + np.abs(value) * b.error) / smallest
    error = np.where(smallest > 0, error, np.inf)
    return Bounded(value, error + arithmetic.gamma(roundings) * (np.abs(value) + error) + arithmetic.tiny)


def monotone(arithmetic: Arithmetic, f: Function, x: Bounded, relative: float) -> Bounded:
    """f(x) for a monotone f: its values at the ends of the interval bound it, and it rounds by `relative`."""
    value, low, high = f(x.value), f(x.value - x.error), f(x.value + x.error)
    spread = np.maximum(np.abs(high - value), np.abs(value - low))
    largest = np.maximum(np.abs(high), np.abs(low))
    return Bounded(value, spread + relative * largest + arithmetic.tiny)


def exp(arithmetic: Arithmetic, x: Bounded) -> Bounded:
    """e^x, monotone, within ELEMENTARY_ULP."""
    return monotone(arithmetic, np.exp, x, arithmetic.elementary)


def tanh(arithmetic: Arithmetic, x: Bounded) -> Bounded:
    """tanh x, monotone, within ELEMENTARY_ULP."""
    return _saturating(arithmetic, np.tanh, lambda z: 2 / (np.exp(2 * z) + 1), x)


def erf(arithmetic: Arithmetic, x: Bounded) -> Bounded:
    """erf x, monotone, within ELEMENTARY_ULP."""
    return _saturating(arithmetic, _erf, _erfc, x)


def _saturating(arithmetic: Arithmetic, f: Function, rest: Function, x: Bounded) -> Bounded:
    """An odd, monotone f between -1 and 1, and 1 - f for positive arguments.

    A requirement of its own, beside ELEMENTARY_ULP: where f is nearer to 1 or -1 than u / 1024, its computed value is
    1 or -1 itself, and so off by no more than the rest. For 1 + f(x) all depends on it: what is left of f near -1 is 0.
    """
    y = monotone(arithmetic, f, x, arithmetic.elementary)
    left = rest(np.abs(x.value) - x.error)
    return Bounded(y.value, np.where(left < arithmetic.u / 1024, left, y.error))


def sqrt(arithmetic: Arithmetic, x: Bounded) -> Bounded:
    """sqrt x, monotone and rounded once; an interval that reaches below 0 is cut there."""
    return monotone(arithmetic, lambda z: np.sqrt(np.maximum(z, 0)), x, arithmetic.u)


def reciprocal_sqrt(arithmetic: Arithmetic, x: Bounded) -> Bounded:
    """1 / sqrt x, falling. The root and the division round once each; no bound when the interval reaches 0.

    A kernel's own reciprocal root counts as an elementary function, so that much is granted.
    """

    def f(z: np.ndarray) -> np.ndarray:
        return np.asarray(1 / np.sqrt(np.maximum(z, 0)))

    return monotone(arithmetic, f, x, arithmetic.elementary)


def sigmoid(arithmetic: Arithmetic, x: Bounded) -> Bounded:
    """1 / (1 + e^-x), monotone.

    An error d of e^-x moves the result by the factor 1 / (1 + d s), s = e^-x / (1 + e^-x) < 1, so by no more than d;
    the sum and the division round once each. Where e^-x overflows, the result is below `tiny` and comes out as 0.
    """
    return monotone(
        arithmetic, lambda z: 1 / (1 + np.exp(-z)), x, arithmetic.elementary + arithmetic.gamma(2)
    )


def total(arithmetic: Arithmetic, x: Bounded, axis: int = -1, *, keepdims: bool = False) -> Bounded:
    """The sum over an axis of n, in any order: each term passes through at most n - 1 additions."""
    n = x.value.shape[axis]
    size = np.sum(np.abs(x.value) + x.error, axis=axis, keepdims=keepdims)
    error = np.sum(x.error, axis=axis, keepdims=keepdims)
    return Bounded(
        np.sum(x.value, axis=axis, keepdims=keepdims), error + arithmetic.gamma(max(n - 1, 0)) * size
    )


def mean(arithmetic: Arithmetic, x: Bounded, axis: int = -1, *, keepdims: bool = False) -> Bounded:
    """The sum over n >= 1, divided by n or multiplied by a rounded 1/n: two roundings more."""
    n = x.value.shape[axis]
    whole = total(arithmetic, x, axis, keepdims=keepdims)
    value, error = whole.value / n, whole.error / n
    return Bounded(value, error + arithmetic.gamma(2) * (np.abs(value) + error) + arithmetic.tiny)


def select(condition: np.ndarray, a: Bounded, b: Bounded) -> Bounded:
    """a where the condition holds, else b, which is exact."""
    return Bounded(np.where(condition, a.value, b.value), np.where(condition, a.error, b.error))
