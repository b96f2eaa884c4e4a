"""Running error analysis: arrays that carry a bound on how far a computed value may be from the exact one.

Notation of Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., 2002, chapters 2 and 3: one operation
errs by a factor 1 + d with |d| <= u; n of them by at most gamma(n) = n u / (1 - n u).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ELEMENTARY_ULP = 4  # what we ask of exp, log and tanh: within 4 units in the last place, each at most 2 u


class Bounded(NamedTuple):
    """A value in float64, and how far from it a computation in the compute type may be."""

    value: np.ndarray
    error: np.ndarray


def transpose(x: Bounded) -> Bounded:
    """The last two axes changed places."""
    return Bounded(*(part.swapaxes(-1, -2) for part in x))


@dataclass(frozen=True)
class Arithmetic:
    """The compute type: u, its unit roundoff (with the oracle's own float64 added), and tiny, its smallest normal.

    tiny covers underflow: below it a result may lose all its digits, or be flushed to 0.
    """

    u: float
    tiny: float

    @staticmethod
    def of(dtype: str) -> "Arithmetic":
        """Of f32 or f64, the types that are computed in."""
        info = np.finfo(np.float32) if dtype == "f32" else np.finfo(np.float64)
        return Arithmetic(float(info.eps) / 2 + 2.0**-53, float(info.tiny))

    def gamma(self, n: int) -> float:
        """The relative error of n roundings."""
        return n * self.u / (1 - n * self.u)

    @property
    def elementary(self) -> float:
        """Relative error of exp, log and tanh."""
        return 2 * ELEMENTARY_ULP * self.u

    def exact(self, x: np.ndarray) -> Bounded:
        """An input. What is not finite counts as 0: it makes its own result infinite or NaN, which has no bound."""
        value = np.where(np.isfinite(x), x, 0).astype(np.float64)
        return Bounded(value, np.zeros_like(value))

    def matmul(self, a: Bounded, b: Bounded, extra: int = 0) -> Bounded:
        """a @ b, sums in any order, with or without fused multiply-add; `extra` more roundings of each term."""
        n = a.value.shape[-1]
        size_a, size_b = np.abs(a.value) + a.error, np.abs(b.value) + b.error
        error = np.abs(a.value) @ b.error + a.error @ size_b
        error = error + self.gamma(n + extra) * (size_a @ size_b)
        # A factor that underflows takes its term with it.
        floor = self.tiny * (n + np.ones_like(size_a) @ size_b)
        return Bounded(a.value @ b.value, error + floor)

    def add(self, a: Bounded, b: Bounded) -> Bounded:
        """a + b, rounded once."""
        value = a.value + b.value
        error = a.error + b.error
        return Bounded(value, error + self.u * (np.abs(value) + error))

    def scale(self, x: Bounded, factor: float) -> Bounded:
        """x times an exact factor, without a rounding of its own."""
        return Bounded(x.value * factor, x.error * abs(factor))

    def softcap(self, x: Bounded, cap: float) -> Bounded:
        """cap · tanh(x / cap): monotone, so the ends of x's interval bound it. An infinite x gives ±cap, rounded."""
        spread = x.error + 2 * self.u * np.abs(x.value)  # the division, and the rounding of cap itself
        spread = np.where(np.isinf(x.value), 0, spread)
        value = cap * np.tanh(x.value / cap)
        high = cap * np.tanh((x.value + spread) / cap) - value
        low = value - cap * np.tanh((x.value - spread) / cap)
        return Bounded(
            value, np.maximum(high, low) + (self.elementary + 2 * self.u) * np.abs(value) + self.tiny
        )
