"""The bounds hold for honest arithmetic in any order, and are tight enough to tell it from the dishonest."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import cases
from conformance.bounds import derive
from conformance.bounds.arithmetic import ELEMENTARY_ULP, Arithmetic, Bounded
from conformance.bounds.softmax import bound_softmax
from conformance.cases.draft import Draft
from conformance.inputs import Draw
from conformance.oracle import answer
from conformance.oracle.kv_cache import predict_codes
from conformance.realise import realise

F32 = Arithmetic.of("f32")


def test_gamma_is_highams() -> None:
    u = Arithmetic.of("f64").u
    assert u == 2.0**-52  # the port's 2^-53 and the oracle's own
    assert Arithmetic.of("f64").gamma(10) == 10 * u / (1 - 10 * u)


@given(st.integers(1, 200), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_dot_product_in_any_order_is_within_its_bound(n: int, seed: int) -> None:
    draw = Draw(f"dot/{seed}")
    a, b = draw.normal(1, n).astype(np.float32), draw.normal(n, 1).astype(np.float32)
    bounded = F32.matmul(F32.exact(a), F32.exact(b))
    order = np.argsort(draw.uniform(n))
    total = np.float32(0)
    for i in order:
        total = np.float32(total + np.float32(a[0, i] * b[i, 0]))
    assert abs(float(total) - bounded.value[0, 0]) <= bounded.error[0, 0]


@given(st.integers(1, 40), st.floats(0, 3), st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_weights_of_perturbed_scores_are_within_their_bound(n: int, size: float, seed: int) -> None:
    """Scores moved by up to their error, in the worst directions too: the weights stay inside."""
    draw = Draw(f"weights/{seed}")
    z, e = 3 * draw.normal(n), size * draw.uniform(n)
    bound = bound_softmax(F32, Bounded(z, e), np.ones(n, bool), np.array(-np.inf))
    exact = answer("softmax", {}, {"x": z})
    for direction in (
        2 * draw.uniform(n) - 1,
        np.where(np.arange(n) == n - 1, 1, -1),
        -np.ones(n),
        np.sign(draw.normal(n)),
    ):
        moved = answer("softmax", {}, {"x": z + e * direction})
        assert (np.abs(moved["output"] - exact["output"]) <= bound.weights.error).all()
        assert abs(moved["lse"] - exact["lse"]) <= bound.lse.error


def test_the_interval_is_reached() -> None:
    """Two slots, one up and one down: the bound is what the perturbation gives, and not a multiple of it."""
    z, e = np.array([0.0, 1.0]), np.array([0.1, 0.1])
    bound = bound_softmax(F32, Bounded(z, e), np.ones(2, bool), None).weights.error
    moved = (
        answer("softmax", {}, {"x": z + np.array([0.1, -0.1])})["output"]
        - answer("softmax", {}, {"x": z})["output"]
    )
    assert np.abs(moved) == pytest.approx(bound, rel=1e-3)


def test_a_bound_never_exceeds_what_a_weight_can_be() -> None:
    z = np.array([7.2e37, 0.0])
    bound = bound_softmax(F32, Bounded(z, np.array([1e33, 0])), np.ones(2, bool), None).weights.error
    assert (bound < 1e-5).all()


FAMILY = ["norms", "linear", "sparse", "structured", "mla", "block"]


@pytest.mark.parametrize("suite", ["softmax", "sdpa", "mha", "kv_cache", *FAMILY])
def test_float32_arithmetic_uses_little_and_float16_far_too_much(suite: str) -> None:
    """Every bound is finite where its answer is; rounding the inputs to f16 breaks most cases of a suite."""
    caught = asked = 0
    for draft in cases.drafts(suite):
        if draft.error is not None:
            continue
        inputs, expected = realise(draft, "f32")
        assert expected is not None
        bounds = derive(draft.op, draft.config, inputs, "f32", draft.steps)
        for name, x in expected.items():
            if x.dtype.kind == "f":
                assert np.isfinite(np.broadcast_to(bounds[name], x.shape)[np.isfinite(x)]).all(), draft.id
        if "by-hand" in draft.id or sum(x.size for x in inputs.values()) < 60:
            continue  # small integers are exact in f16
        with np.errstate(over="ignore"):
            coarse = {
                n: x.astype(np.float16).astype(np.float32) if x.dtype.kind == "f" else x
                for n, x in inputs.items()
            }
        if draft.config.get("kind") == "quantised" and predict_codes(draft.config, coarse) != list(
            draft.steps or ()
        ):
            continue  # what f16 cannot hold has no code
        other = answer(draft.op, draft.config, coarse, draft.steps)
        asked += 1
        with np.errstate(invalid="ignore"):  # what is infinite in both is left out
            caught += any(
                (
                    np.abs(other[n] - x)[np.isfinite(x)] > np.broadcast_to(bounds[n], x.shape)[np.isfinite(x)]
                ).any()
                for n, x in expected.items()
                if x.dtype.kind == "f"
            )
    assert asked >= 10
    assert caught >= 0.8 * asked


@pytest.mark.parametrize(
    "draft",
    [d for d in cases.drafts("sdpa") if d.id.startswith(("sdpa/kv-len/", "sdpa/head-size/"))],
    ids=lambda d: d.id,
)
def test_the_last_key_and_channel_matter(draft: Draft) -> None:
    """A port that drops the last channel, or the last key, is out of bounds by a factor of a thousand."""
    inputs, expected = realise(draft, "f32")
    assert expected is not None
    bound = derive("sdpa", draft.config, inputs, "f32")["output"]
    without = dict(inputs)
    if inputs["k"].shape[2] > 1 and "kv-len" in draft.id:
        without["k"], without["v"] = inputs["k"][:, :, :-1], inputs["v"][:, :, :-1]
    elif inputs["k"].shape[3] > 1 and "head-size" in draft.id:
        without["k"] = np.concatenate([inputs["k"][..., :-1], np.zeros_like(inputs["k"][..., -1:])], axis=-1)
    else:
        return
    wrong = answer("sdpa", draft.config, without)["output"]
    assert (np.abs(wrong - expected["output"]) > 1000 * bound).any()


@pytest.mark.parametrize(("name", "low", "high"), [("exp", -80, 0), ("log", 1, 1e4), ("tanh", -9, 9)])
def test_elementary_functions_are_as_good_as_the_bounds_assume(name: str, low: float, high: float) -> None:
    """NumPy's own, in f32, against float64; each language's libraries are held to it by the cases."""
    x = (low + (high - low) * Draw(f"elementary/{name}").uniform(200_000)).astype(np.float32)
    function = getattr(np, name)
    exact = function(x.astype(np.float64))
    error = np.abs(function(x).astype(np.float64) - exact)
    ulp = error / np.spacing(np.abs(exact).astype(np.float32))
    assert ulp.max() <= ELEMENTARY_ULP
