"""The bounds hold for honest arithmetic in any order, and are tight enough to tell it from the dishonest."""

from typing import Any

import numpy as np
import pytest
from coarse import answered, count_caught
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import cases
from conformance.bounds import derive
from conformance.bounds.arithmetic import ELEMENTARY_ULP, Arithmetic, Bounded
from conformance.bounds.softmax import bound_softmax
from conformance.cases.draft import Draft
from conformance.inputs import Draw
from conformance.oracle import answer
from conformance.realise import realise
from conformance.tensors import Tensors

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


SUITES = ["softmax", "sdpa", "mha", "kv_cache", *FAMILY]


@pytest.mark.parametrize("suite", SUITES)
def test_a_bound_is_finite_where_its_answer_is(suite: str) -> None:
    for draft, _, expected, bounds in answered(suite):
        for name, x in expected.items():
            if x.dtype.kind == "f":
                assert np.isfinite(np.broadcast_to(bounds[name], x.shape)[np.isfinite(x)]).all(), draft.id


@pytest.mark.parametrize("suite", SUITES)
def test_inputs_rounded_to_float16_are_caught(suite: str) -> None:
    """In most cases of a suite the answer is then out of the bound of f32."""
    caught, asked = count_caught(suite, lambda x: x.astype(np.float16).astype(np.float32), 60)
    assert asked >= 10
    assert caught >= 0.8 * asked


@pytest.mark.parametrize(
    "draft",
    [
        draft
        for draft in cases.drafts("sdpa")
        for name, axis in (("sdpa/kv-len/", 2), ("sdpa/head-size/", 3))
        if draft.id.startswith(name) and draft.inputs["k"].shape[axis] > 1
    ],
    ids=lambda d: d.id,
)
def test_the_last_key_and_channel_matter(draft: Draft) -> None:
    """A port that drops the last channel, or the last key, is out of bounds by a factor of a thousand."""
    inputs, expected = realise(draft, "f32")
    assert expected is not None
    bound = derive("sdpa", draft.config, inputs, "f32")["output"]
    without = dict(inputs)
    if "kv-len" in draft.id:
        without["k"], without["v"] = inputs["k"][:, :, :-1], inputs["v"][:, :, :-1]
    else:
        without["k"] = np.concatenate([inputs["k"][..., :-1], np.zeros_like(inputs["k"][..., -1:])], axis=-1)
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


Infinite = tuple[dict[str, Any], Tensors]


def infinite_question(softcap: float | None, seed: int, *, biased: bool) -> Infinite:
    """One head; an infinity of either sign in one element of k, one of q or both, and a bias that hides a key."""
    draw = Draw(f"infinite/{seed}")
    inputs = {
        name: (3 * draw.normal(1, 1, n, 4)).astype(np.float32) for name, n in (("q", 3), ("k", 5), ("v", 5))
    }
    for name in (("k",), ("q",), ("q", "k"))[seed % 3]:
        inputs[name].flat[int(draw.integers(0, inputs[name].size, 1)[0])] = (np.inf, -np.inf)[seed // 3 % 2]
    if biased:
        inputs["bias"] = draw.normal(3, 5).astype(np.float32)
        inputs["bias"][1, seed % 5] = -np.inf
    return ({} if softcap is None else {"softcap": softcap}), inputs


def attend_in_float32(config: dict[str, Any], inputs: Tensors, change: Any = None) -> Tensors:
    """sdpa as a port may do it. `change` is what a liar does to the capped scores, from them and the scores."""
    one = np.float32
    scores = (inputs["q"] * one(0.5)) @ inputs["k"].swapaxes(-1, -2)
    cap = None if "softcap" not in config else one(config["softcap"])
    capped = scores if cap is None else cap * np.tanh(scores / cap)
    capped = capped if change is None else change(capped, scores).astype(np.float32)
    biased = capped + inputs.get("bias", one(0))
    shown = ~(biased == -np.inf) & ~(np.broadcast_to(inputs.get("bias", one(0)), biased.shape) == -np.inf)
    top = np.where(shown, biased, -np.inf).max(axis=-1, keepdims=True)
    terms = np.where(shown, np.exp(biased - np.where(top == -np.inf, one(0), top)), one(0))
    total = terms.sum(axis=-1, keepdims=True)
    weights = np.where(shown, terms / total, one(0))
    lse = np.where(shown.any(-1), (top + np.log(total))[..., 0], -np.inf)
    output = weights @ inputs["v"]
    return {"output": output, "weights": weights, "lse": lse, "capped": capped, "biased": biased}


def is_within(question: Infinite, found: Tensors) -> bool:
    config, inputs = question
    expected, bounds = answer("sdpa", config, inputs), derive("sdpa", config, inputs, "f32")
    within = True
    for name, x in found.items():
        finite = np.isfinite(expected[name])
        within &= np.array_equal(x[~finite], expected[name][~finite], equal_nan=True)
        within &= bool((np.abs(x - expected[name])[finite] <= bounds[name][finite]).all())
    return within


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("softcap", [None, 0.5, 1.0, 20.0, 1e4])
def test_infinities_in_q_and_k_hide_their_slot_or_meet_the_cap(softcap: float | None, biased: bool) -> None:
    """Honest float32 stays within the bound; what takes the infinity for a number, or misses the cap, does not."""
    liars = [lambda capped, scores: np.where(np.isinf(scores), 0, capped)]
    if softcap is not None:
        liars += [
            lambda capped, scores: np.where(np.isinf(scores), capped * (1 - 1e-5), capped),
            lambda capped, scores: np.where(np.isinf(scores), scores, capped),
        ]
    with np.errstate(all="ignore"):
        for seed in range(60):
            question = infinite_question(softcap, seed, biased=biased)
            assert is_within(question, attend_in_float32(*question)), seed
            for liar in liars:
                assert not is_within(question, attend_in_float32(*question, liar)), seed
