"""The bounds of single operations: honest float32 stays inside, the corners of the interval are reached."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from conformance.bounds import elementwise as ew
from conformance.bounds.arithmetic import Arithmetic, Bounded
from conformance.inputs import Draw

F32 = Arithmetic.of("f32")
N = 400


def uncertain(name: str, low: float, high: float, relative: float = 1e-4) -> Bounded:
    draw = Draw(f"elementwise/{name}")
    value = (low + (high - low) * draw.uniform(N)).astype(np.float32).astype(np.float64)
    return Bounded(value, relative * draw.uniform(N) * np.abs(value))


def moved(x: Bounded, name: str) -> list[np.ndarray]:
    """Both ends of the interval and points between, as float32 inside it."""
    draw = Draw(f"elementwise/{name}/moved")
    inside = []
    for t in (np.full(N, 1.0), np.full(N, -1.0), 2 * draw.uniform(N) - 1, np.sign(draw.normal(N))):
        y = (x.value + t * x.error).astype(np.float32)
        inside.append(np.where(np.abs(y - x.value) <= x.error, y, x.value.astype(np.float32)))
    return inside


UNARY: dict[str, tuple[Callable[..., Bounded], Callable[[np.ndarray], np.ndarray], str, float, float]] = {
    "exp": (ew.exp, np.exp, "exp", -20, 20),
    "tanh": (ew.tanh, np.tanh, "tanh", -15, 15),
    "sqrt": (ew.sqrt, np.sqrt, "sqrt", 0, 9),
    "reciprocal_sqrt": (ew.reciprocal_sqrt, lambda x: np.float32(1) / np.sqrt(x), "rsqrt", 0.1, 9),
    "sigmoid": (ew.sigmoid, lambda x: np.float32(1) / (np.float32(1) + np.exp(-x)), "sigmoid", -30, 30),
    "erf": (
        ew.erf,
        lambda x: np.array([math.erf(z) for z in x.tolist()], np.float32),
        "erf",
        -7,
        7,
    ),
}
EXACT: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "exp": mpmath.exp,
    "tanh": mpmath.tanh,
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "erf": mpmath.erf,
}


@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_an_uncertain_value_is_within_its_bound(name: str) -> None:
    bound, compute, exact, low, high = UNARY[name]
    x = uncertain(name, low, high)
    result = bound(F32, x)
    with mpmath.workdps(50):  # near 1 a difference of float64 would say nothing
        truth = [EXACT[exact](mpmath.mpf(z)) for z in x.value.tolist()]
        assert np.allclose(result.value, np.array(truth, float), rtol=1e-14, atol=0)
        for y in moved(x, name):
            for got, want, error in zip(compute(y).tolist(), truth, result.error.tolist(), strict=True):
                assert abs(mpmath.mpf(got) - want) <= error


@pytest.mark.parametrize("name", UNARY)
def test_the_interval_is_not_a_multiple_of_what_is_reached(name: str) -> None:
    """With an error that dwarfs the rounding, the worst corner uses nearly all of the bound."""
    bound, _, exact, low, high = UNARY[name]
    x = uncertain(name, low, high, 0.01)
    result = bound(F32, x)
    reached = np.zeros(N)
    for y in (x.value - x.error, x.value + x.error):
        corner = np.array([float(EXACT[exact](mpmath.mpf(z))) for z in y.tolist()])
        reached = np.maximum(reached, np.abs(corner - result.value))
    wide = x.error > 1e-3
    slope = reached[wide] > 1e-4 * np.abs(result.value[wide])  # not where the function is flat
    assert slope.sum() > 20
    assert (reached[wide][slope] >= 0.9 * result.error[wide][slope]).all()


@pytest.mark.parametrize(
    ("bound", "compute"),
    [(ew.multiply, np.multiply), (ew.divide, np.divide), (ew.subtract, np.subtract)],
    ids=["multiply", "divide", "subtract"],
)
def test_two_uncertain_values(
    bound: Callable[..., Bounded], compute: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> None:
    a, b = uncertain("a", -3, 3), uncertain("b", 0.5, 4)
    result = bound(F32, a, b)
    assert np.array_equal(result.value, compute(a.value, b.value))
    worst = 0.0
    for x in moved(a, "a"):
        for y in moved(b, "b"):
            error = np.abs(compute(x, y).astype(np.float64) - result.value)
            assert (error <= result.error).all()
            worst = max(worst, float((error / result.error).max()))
    assert worst > 0.8


@np.errstate(divide="ignore")
def test_a_quotient_whose_divisor_may_be_zero_has_no_bound() -> None:
    one = Bounded(np.ones(2), np.zeros(2))
    result = ew.divide(F32, one, Bounded(np.array([1.0, 1e-3]), np.array([0.5, 1e-3])))
    assert np.isfinite(result.error).tolist() == [True, False]
    near_zero = Bounded(np.array([1.0, 1e-3]), np.array([0.5, 1e-3]))
    assert np.isfinite(ew.reciprocal_sqrt(F32, near_zero).error).tolist() == [True, False]


@pytest.mark.parametrize("n", [1, 2, 7, 64, 300])
def test_sums_and_means_in_any_order(n: int) -> None:
    draw = Draw(f"elementwise/sum/{n}")
    value = draw.normal(20, n).astype(np.float32).astype(np.float64)
    x = Bounded(value, 1e-6 * draw.uniform(20, n))
    total, mean = ew.total(F32, x), ew.mean(F32, x)
    exact = np.array([math.fsum(row) for row in value.tolist()])
    y = (value + x.error * np.sign(value)).astype(np.float32)
    y = np.where(np.abs(y - value) <= x.error, y, value.astype(np.float32))
    for order in (np.arange(n), np.arange(n)[::-1], np.argsort(draw.uniform(n))):
        running = np.zeros(20, np.float32)
        for i in order:
            running = (running + y[:, i]).astype(np.float32)
        assert (np.abs(running - exact) <= total.error).all()
        assert (np.abs(running / np.float32(n) - exact / n) <= mean.error).all()
        assert (np.abs(running * (np.float32(1) / np.float32(n)) - exact / n) <= mean.error).all()


def test_select_takes_the_error_along() -> None:
    a, b = uncertain("s", 1, 2), uncertain("t", 3, 4)
    condition = np.arange(N) % 2 == 0
    chosen = ew.select(condition, a, b)
    assert np.array_equal(chosen.value[::2], a.value[::2])
    assert np.array_equal(chosen.error[1::2], b.error[1::2])
