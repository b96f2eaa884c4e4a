"""The bounds that follow their errors by derivatives: of blocks and stacks, and of the gated recurrence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.bounds import derive
from conformance.bounds.arithmetic import Arithmetic, Bounded
from conformance.bounds.stages import jacobian, propagate_stages
from conformance.cases.block_weights import block_weights
from conformance.cases.gated_linear import RULES, gated_inputs
from conformance.inputs import Draw
from conformance.oracle import answer

F32 = Arithmetic.of("f32")


def rotation(x: Bounded, rows: np.ndarray) -> Bounded:
    """A quarter turn that loses 1e-6 of itself: twice a half turn, and no error grows on the way."""
    turn = np.array([[0.0, 1], [-1, 0]])
    value = x.value @ turn
    return Bounded(value, x.error @ np.abs(turn) + 1e-6)


def test_what_cancels_in_the_chain_cancels_in_the_bound() -> None:
    """y = (x + a) - a with 1000 in between: intervals would add up, derivatives know that d y / d x is 1."""

    def spread(x: Bounded, rows: np.ndarray) -> Bounded:
        return Bounded(x.value @ [[1, 1]], np.zeros((*x.value.shape[:2], 2)))

    def mix(x: Bounded, rows: np.ndarray) -> Bounded:
        return Bounded(x.value @ [[1000.0], [-999.0]], np.full((*x.value.shape[:2], 1), 1e-9))

    x = Bounded(np.ones((1, 1, 1)), np.full((1, 1, 1), 1e-6))
    result = propagate_stages([spread, mix], x)
    assert result.value.item() == 1
    assert result.error.item() == pytest.approx(1e-6 + 1e-9, rel=1e-6)  # not 1999e-6


def test_a_chain_of_turns_adds_its_errors_up() -> None:
    x = Bounded(np.array([[[3.0, 4]]]), np.zeros((1, 1, 2)))
    result = propagate_stages([rotation] * 100, x)
    assert result.error == pytest.approx(np.full((1, 1, 2), 100e-6), rel=1e-6)


def test_a_jacobian_keeps_the_rows_apart() -> None:
    """Each row of the batch has its own, by its own index."""

    def by_row(x: Bounded, rows: np.ndarray) -> Bounded:
        return Bounded(x.value**2 * (rows + 1)[:, None, None], np.zeros_like(x.value))

    slopes = jacobian(by_row, np.array([[[1.0, 2]], [[3, 4]]]))
    assert slopes.shape == (2, 2, 2)
    assert slopes[0] == pytest.approx(np.diag([2, 4]), abs=1e-6)
    assert slopes[1] == pytest.approx(np.diag([12, 16]), abs=1e-6)


def rounded(inputs: dict[str, np.ndarray], draw: Draw) -> dict[str, np.ndarray]:
    """Every input moved by up to half a unit in the last place of f32: what an honest port may be taken to do."""
    return {
        name: x * (1 + 2.0**-24 * np.sign(draw.normal(*x.shape))) if x.dtype.kind == "f" else x
        for name, x in inputs.items()
    }


@given(
    st.integers(0, 10**6),
    st.sampled_from(["gelu", "gelu_tanh", "relu", "swiglu"]),
    st.sampled_from(["layer", "rms"]),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_small_changes_of_the_weights_stay_within_the_bound_of_a_block(
    seed: int, activation: str, norm: str, first: bool
) -> None:
    """A rounding of each weight and input is less than what a port may do, and more than a thousandth of it."""
    name = f"stages/{seed}"
    inputs = block_weights(name, norm=norm, activation=activation) | {"x": Draw(name).normal(1, 3, 6)}
    inputs = {key: x.astype(np.float32).astype(np.float64) for key, x in inputs.items()}
    config = {"num_heads": 2, "activation": activation, "norm": norm, "norm_first": first}
    bound = derive("block", config, inputs, "f32")["output"]
    exact = answer("block", config, inputs)["output"]
    worst = 0.0
    for trial in range(3):
        moved = answer("block", config, rounded(inputs, Draw(f"{name}/{trial}")))["output"]
        worst = max(worst, float((np.abs(moved - exact) / bound).max()))
    assert 1e-3 < worst <= 1


@given(st.integers(0, 10**6), st.sampled_from(RULES), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_the_recurrence_in_float32_is_within_its_bound(seed: int, rule: str, T: int) -> None:
    inputs = gated_inputs(f"recurrence/{seed}", rule, 1, 2, 1, T, 3, 2)
    inputs = {name: x.astype(np.float32) for name, x in inputs.items()}
    exact = answer("gated_linear", {"rule": rule, "scale": 1}, inputs)
    bounds = derive("gated_linear", {"rule": rule, "scale": 1}, inputs, "f32")
    state = np.zeros((3, 2), np.float32)
    for t in range(T):
        key, value = inputs["k"][0, 0, t], inputs["v"][0, 0, t]
        if "gated" in rule:
            state = np.exp(inputs["decay"][0, 0, t])[:, None] * state
        if "delta" in rule:
            value = inputs["beta"][0, 0, t] * (value - key @ state)
        state = state + np.outer(key, value)
        for h in range(2):
            error = np.abs(inputs["q"][0, h, t] @ state - exact["output"][0, h, t])
            assert (error <= bounds["output"][0, h, t]).all()
    assert (np.abs(state - exact["state"][0, 0]) <= bounds["state"][0, 0]).all()


def test_the_bound_of_a_long_recurrence_stays_small() -> None:
    """Keys of length 1 never let the state grow, and neither the bound: 200 steps of the delta rule in f32."""
    inputs = gated_inputs("recurrence/long", "delta", 1, 1, 1, 200, 4, 2)
    bounds = derive("gated_linear", {"rule": "delta"}, inputs, "f32")
    assert bounds["state"].max() < 1e-4
