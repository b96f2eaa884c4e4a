"""What a policy keeps is certain, or found to hang on a rounding; and the bounds of weights that are tracked."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import cases, fixtures
from conformance.bounds import derive
from conformance.bounds.eviction import find_undecided
from conformance.cases.cache_script import CacheScript, contiguous, per_head, quantised
from conformance.inputs import Draw
from conformance.oracle import answer
from conformance.oracle.kv_cache import predict_codes
from conformance.realise import realise

ONE = {"batch": 1, "Hq": 1, "Hkv": 1, "D": 1, "Dv": 1}
Q = np.ones((1, 1, 1, 1))
ULP = 2.0**-23


def undecided(script: CacheScript, dtype: str = "f32") -> list[int]:
    draft = script.once().draft("")
    inputs, _ = realise(draft, dtype, answers=False)
    assert predict_codes(draft.config, inputs) == list(draft.steps or ())
    return find_undecided(draft.config, inputs, draft.steps, dtype)


def scored(*scores: float, **options: Any) -> CacheScript:
    """Keys that are the scores of a query of 1."""
    k = np.array(scores, float).reshape(1, 1, -1, 1)
    return contiguous("x", **ONE, track=True, **options).append(k.size, k=k, v=np.ones_like(k))


def test_scores_that_rounding_may_exchange_are_found() -> None:
    for gap, found in ((3 * ULP, [2]), (1e-2, [])):
        heavy = scored(1, 1 + gap, 3).attend(1, q=Q, scale=1).evict_by("heavy_hitters", 2)
        assert undecided(heavy) == found
        snap = scored(1, 1 + gap, 3).attend(1, q=Q, scale=1).evict_by("snapkv", 2, q=Q, scale=1)
        assert undecided(snap) == found
        assert undecided(snap, "f64") == []  # far apart there
    assert undecided(scored(1, 1, 3).attend(1, q=Q, scale=1).evict_by("heavy_hitters", 2)) == [2]
    assert undecided(scored(1, 1, 3).attend(1, q=Q, scale=1).evict_by("heavy_hitters", 1)) == []  # both go
    assert undecided(scored(1, 1, 3).attend(1, q=Q, scale=1).evict_by("heavy_hitters", 2, sinks=1)) == []


def test_ties_of_the_largest_weights_are_certain() -> None:
    for zero in (True, False):
        q = np.zeros_like(Q) if zero else Q
        tie = scored(2, 2, 1) if not zero else scored(2, 5, 1)
        assert undecided(tie.attend(1, q=q, scale=1).evict_by("heavy_hitters", 1)) == []
    assert undecided(scored(1, 2, 3).evict_by("heavy_hitters", 1)) == []  # nothing was read
    near = scored(2, 2, 2 - ULP).attend(1, q=Q, scale=1)  # which of them is the largest a rounding may say
    assert undecided(near.evict_by("heavy_hitters", 1)) == [2]
    biased = scored(2, 2, 1).attend(1, q=Q, scale=1, bias=np.array([1e-7, 0, 0]).reshape(1, 1, 1, 3))
    assert undecided(biased.evict_by("heavy_hitters", 1)) == [2]
    apart = scored(1, 1).attend_uniform()
    apart.append_values(1).attend_uniform(mask=np.array([True, False, True]))
    apart.attend_uniform(mask=np.array([False, True, True]))  # one half each, of other rows
    assert undecided(apart.evict_by("heavy_hitters", 1)) == [5]
    sums = contiguous("x", batch=1, Hq=1, Hkv=1, D=2, Dv=1, track=True)
    sums.append(3, k=np.array([[1, 2], [1, 2], [0, 0.0]])[None, None])  # in another order, another rounding
    sums.attend(1, q=np.ones((1, 1, 1, 2)), scale=1).evict_by("heavy_hitters", 1)
    assert undecided(sums) == [2]


def test_slots_that_share_a_neighbour_are_a_certain_tie() -> None:
    weights = [5.0, 1, 2, 4, 1.5, 0]
    assert undecided(scored(*weights).evict_by("snapkv", 4, q=Q, scale=1, pool=3)) == []
    twice = scored(5, 1, 1, 1, 5, 0, 0).evict_by("snapkv", 3, q=Q, scale=1, pool=3)  # 0, 1 and 3, 4, 5 have 5
    assert undecided(twice) == []  # both peaks are the row's largest
    lower = scored(9, 1, 5, 0, 0, 5, 0).evict_by("snapkv", 4, q=Q, scale=1, pool=3)
    assert undecided(lower) == [1]


def test_norms_are_certain_unless_keys_were_rotated() -> None:
    k = np.array([[3, 4], [5, 0], [0, 5]], float)[None, None]
    for rope, found in ((None, []), ({}, [1])):
        kind = {} if rope is None else {"rope": rope}
        script = contiguous("x", batch=1, Hq=1, Hkv=1, D=2, Dv=1, **kind).append(3, k=k)
        assert undecided(script.evict_by("key_norm", 2)) == found
    late = contiguous("x", batch=1, Hq=1, Hkv=1, D=2, Dv=1, rope={}, rope_at="attend").append(3, k=k)
    assert undecided(late.evict_by("key_norm", 2)) == []
    far = contiguous("x", batch=1, Hq=1, Hkv=1, D=2, Dv=1, rope={}).append(
        3, k=k * np.array([1, 2, 3.0])[:, None]
    )
    assert undecided(far.evict_by("key_norm", 2)) == []


def test_nan_is_certain() -> None:
    script = scored(1, np.nan, 2).attend(1, q=Q)
    assert undecided(script.evict_by("heavy_hitters", 1)) == []
    assert undecided(scored(np.nan, np.nan, 2, np.inf).evict_by("key_norm", 3)) == []


def test_heads_of_their_own_are_looked_at_one_by_one() -> None:
    k = np.array([[1, 1, 3], [1, 2, 3]], float).reshape(1, 2, 3, 1)
    for budget, found in (([2, 2], [2]), ([1, 2], []), ([3, 1], [])):
        script = per_head("x", batch=1, Hq=2, Hkv=2, D=1, Dv=1, track=True).append(3, k=k)
        script.attend(1, q=np.ones((1, 2, 1, 1)), scale=1).evict_by("heavy_hitters", budget)
        assert undecided(script) == found


def test_a_case_that_hangs_on_a_rounding_is_refused() -> None:
    draft = scored(1, 1 + 3 * ULP, 3).attend(1, q=Q, scale=1).evict_by("heavy_hitters", 2).draft("")
    inputs, _ = realise(draft, "f32", answers=False)
    with pytest.raises(fixtures.FixtureError, match="step 2 keeps hangs on a rounding"):
        fixtures._check_decided(draft, "f32", inputs)
    fixtures._check_decided(draft, "f64", realise(draft, "f64", answers=False)[0])


def weights_in_f32(q: np.ndarray, k: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Of every query, in float32, sums over slots in this order."""
    scores = (q * np.float32(1 / np.sqrt(q.shape[-1]))) @ k.swapaxes(-1, -2)
    shown = np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    scores = np.where(shown, scores, np.float32(-np.inf))
    terms = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = np.zeros(terms.shape[:-1], np.float32)
    for s in order:
        total = total + terms[..., s]
    return np.asarray(terms / total[..., None])


@given(st.integers(0, 999), st.floats(0.1, 20))
@settings(max_examples=80, deadline=None)
def test_tracked_weights_are_within_their_bound_and_another_slot_is_not(seed: int, size: float) -> None:
    draw = Draw(f"tracked/{seed}")
    k, queries = draw.normal(2, 2, 6, 5) * size, [draw.normal(2, 4, 3, 5) for _ in range(3)]
    script = contiguous("x", batch=2, Hq=4, Hkv=2, D=5, Dv=1, track=True).append(6, k=k)
    for q in queries:
        script.attend(3, q=q, causal=True)
    draft = script.once().read(tracked=True).draft("")
    inputs, want = realise(draft, "f32")
    assert want is not None
    bound = derive(draft.op, draft.config, inputs, "f32", draft.steps)["read0.tracked"]
    total = np.zeros((2, 2, 6))
    order = np.argsort(draw.uniform(6))
    for number in range(3):
        weights = weights_in_f32(inputs[f"q{number}"], inputs["k0"].repeat(2, axis=1), order)
        assert weights.dtype == np.float32
        total += weights.astype(np.float64).reshape(2, 2, 2, 3, 6).sum(axis=(2, 3))
    assert (np.abs(total - want["read0.tracked"]) <= bound).all()
    moved = np.roll(want["read0.tracked"], 1, axis=-1)
    assert (np.abs(moved - want["read0.tracked"]) > bound).any()


def test_the_bound_of_weights_in_a_half_type_is_that_of_f32() -> None:
    """Weights are summed before any rounding to the half type."""
    draft = (
        contiguous("x", track=True)
        .append(5)
        .attend(3, causal=True)
        .once()
        .read(tracked=True)
        .draft("", dtypes=("bf16",))
    )
    inputs, want = realise(draft, "bf16")
    assert want is not None
    bound = derive(draft.op, draft.config, inputs, "bf16", draft.steps)["read0.tracked"]
    assert 0 < bound.max() < 1e-4 * want["read0.tracked"].max()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_restored_and_turned_keys_carry_their_error(dtype: str) -> None:
    """A key that was turned, rounded with its group and turned on may be off by a code, but not by two."""
    script = quantised("x", "int8", batch=1, Hq=1, Hkv=1, D=4, Dv=1, key_groups=2, rope={"base": 100.0})
    script.append(5).read().evict(0).shift(2, 1).read().attend(1)
    draft = script.once().draft("")
    inputs, want = realise(draft, dtype)
    assert want is not None
    bounds = derive(draft.op, draft.config, inputs, dtype, draft.steps)
    step = np.abs(want["read0.k"]).max() / 127
    assert 0 < bounds["read0.k"].max() < 1.1 * step
    assert 0 < bounds["read1.k"].max() < 2.2 * step
    assert bounds["out0"].max() < 0.1


def test_every_policy_of_the_suite_is_decided() -> None:
    asked = 0
    for draft in cases.drafts("kv_cache"):
        if draft.error is None and any("policy" in step for step in draft.config["steps"]):
            dtype = draft.dtypes[-1]
            inputs, _ = realise(draft, dtype, answers=False)
            assert find_undecided(draft.config, inputs, draft.steps, dtype) == [], draft.id
            asked += 1
    assert asked > 70


def test_rotated_late_is_bounded_like_rotated_early() -> None:
    """The roundings of a rotation join at the attend, and nothing that is read has any."""
    found = []
    for where in ("append", "attend"):
        script = contiguous("x", batch=1, D=4, rope={}, rope_at=where).append(6).attend(2, causal=True).read()
        draft = script.once().draft("")
        inputs, _ = realise(draft, "f32", answers=False)
        found.append(derive(draft.op, draft.config, inputs, "f32", draft.steps))
        assert answer(draft.op, draft.config, inputs)["out0"].shape == found[-1]["out0"].shape
    early, late = found
    assert early["read0.k"].max() > 0
    assert late["read0.k"].max() == 0
    np.testing.assert_array_equal(early["out0"], late["out0"])
