"""The reference machine's policies, tracked weights, heads of their own and key groups: by hand, and against others."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conformance import cases
from conformance.bounds import derive
from conformance.cases.cache_script import CacheScript, contiguous, per_head, quantised
from conformance.inputs import Draw
from conformance.judge import compare
from conformance.oracle import answer
from conformance.oracle.eviction import Policy, keep
from conformance.oracle.kv_cache import Machine, predict_codes
from conformance.realise import realise
from conformance.tensors import Tensors

DRAFTS = {draft.id.removeprefix("kv_cache/"): draft for draft in cases.drafts("kv_cache")}
ROPE = {"base": 100.0}
BY_HAND = [
    ("policy/window/by-hand", [25 / 3, 24]),
    ("policy/heavy_hitters/by-hand", [None, 2.5]),
    ("policy/heavy_hitters/all-attends", [None, None, 3]),
    ("policy/heavy_hitters/sinks-recent", [None, 37 / 3]),
    ("policy/heavy_hitters/only-protected", [None, 35 / 3]),
    ("policy/snapkv/by-hand", [5]),
    ("policy/snapkv/causal", [2]),
    ("policy/snapkv/sinks-recent", [None, 37 / 3]),
    ("policy/snapkv/pool/none", [73 / 3]),
    ("policy/snapkv/pool/three", [7 / 3]),
    ("policy/snapkv/pool/three-sink", [13 / 3]),
    ("policy/snapkv/pool/three-recent", [67 / 3]),
    ("policy/snapkv/pool/wide", [7 / 3]),
    ("policy/snapkv/pool/wide-sinks", [67 / 3]),
    ("policy/snapkv/pool/five", [112 / 3]),
    ("policy/key_norm/by-hand", [5]),
    ("policy/key_norm/sinks-recent", [None, 37 / 3]),
    ("policy/key_norm/only-protected", [None, 35 / 3]),
    ("policy/key_norm/order/channels", [2]),
    ("policy/key_norm/order/channels-many", [2]),
    ("policy/key_norm/order/heads", [2]),
    ("policy/ties/heavy_hitters", [1.5]),
    ("policy/ties/snapkv", [1.5]),
    ("policy/ties/key_norm", [1.5]),
    ("policy/ties/tracked", [None, 3]),
    ("policy/ties/sinks", [None, 19 / 3]),
    ("rope-at/by-hand/decode", [2.937694]),
    ("rope-at/by-hand/gap", [2.937694]),
    ("rope-at/by-hand/shift", [2.937694]),
]


def answers(script: CacheScript, dtype: str = "f64") -> Tensors:
    """What the script writes, once."""
    _, expected = realise(script.once().draft(""), dtype)
    assert expected is not None
    return expected


def within_bounds(one: CacheScript, other: CacheScript, names: tuple[str, ...]) -> tuple[Tensors, Tensors]:
    """What both scripts write; under these names it is as near as honest float64 must come, by the bounds of each."""
    written, bounds = [], []
    for script in (one, other):
        draft = script.once().draft("")
        inputs, found = realise(draft, "f64")
        assert found is not None
        written.append(found)
        bounds.append(derive(draft.op, draft.config, inputs, "f64", draft.steps))
    for name in names:
        allowed = bounds[0][name] + bounds[1][name]
        judgement = compare(name, "f64", written[0][name], written[1][name], allowed)
        assert judgement.outcome == "pass", (name, judgement.difference)
    return written[0], written[1]


def expected(id_: str, dtype: str = "f32") -> Tensors:
    _, found = realise(DRAFTS[id_], dtype)
    assert found is not None
    return found


@pytest.mark.parametrize(("id_", "values"), BY_HAND)
def test_the_values_that_the_notes_give(id_: str, values: list[float | None]) -> None:
    found = expected(id_)
    for number, value in enumerate(values):
        if value is not None:  # 2.937694 has six decimals; all others are means of whole numbers
            assert found[f"out{number}"].ravel()[0] == pytest.approx(value, rel=1e-6)


def test_the_tie_of_rounded_squares() -> None:
    assert expected("policy/key_norm/order/fused", "f64")["out0"].ravel() == [1]


def test_the_slots_that_stay_beside_nan() -> None:
    for budget, want in ((2, [2, 4]), (3, [1, 2, 4]), (4, [1, 2, 3, 4])):
        assert expected(f"policy/key_norm/poison-{budget}")["read0.positions"].tolist() == [want]
    assert expected("policy/key_norm/all-nan")["read0.positions"].tolist() == [[0, 1]]
    found = expected("policy/heavy_hitters/poison")
    assert np.isnan(found["read0.tracked"]).tolist() == [[[True, True, True, False, False]]]
    assert found["read1.positions"].tolist() == [[0, 3, 4]]


def test_the_weights_by_hand() -> None:
    found = expected("track/by-hand")
    assert found["read1.tracked"].ravel() == pytest.approx([11 / 6, 5 / 6, 1 / 3])
    assert found["read3.tracked"].ravel() == pytest.approx([25 / 12, 7 / 12, 1 / 4])
    assert found["read4.tracked"].ravel() == pytest.approx([25 / 12, 7 / 12, 1 / 4, 0])
    assert expected("track/heads")["read0.tracked"][0].tolist() == [[3, 1], [1, 1]]
    assert expected("policy/rows/gqa")["read0.tracked"][0] == pytest.approx(
        np.array([[1 / 3, 4 / 3, 1 / 3], [7 / 12, 7 / 12, 5 / 6]])
    )


def test_the_heads_by_hand() -> None:
    own = expected("per_head/by-hand/own")
    assert own["out0"].ravel() == pytest.approx([5, 40])
    assert own["read0.positions"].tolist() == [[[1, 3], [0, 2]]]
    dropped = expected("per_head/by-hand/dropped")
    assert dropped["out0"].ravel() == pytest.approx([0, 60])
    assert dropped["lse0"].ravel()[0] == -np.inf
    assert dropped["out1"].ravel() == pytest.approx([300, (64 + 128 + 300) / 3])
    assert dropped["read1.positions"].tolist() == [[[4, -1, -1, -1, -1], [0, 1, 2, 3, 4]]]
    assert dropped["stats0.positions"].tolist() == [[0, 4]]
    assert expected("per_head/by-hand/mask")["out0"].ravel() == pytest.approx([2, 96])


def test_the_codes_by_hand() -> None:
    outlier = expected("key_groups/by-hand/outlier")
    assert outlier["read0.k_codes"].tolist() == [[[[127, 127], [-127, -127]]]]
    assert outlier["read0.k_scale"].tolist() == [[[[8, 1 / 128]]]]
    tail = expected("key_groups/by-hand/tail")
    assert tail["read0.k_codes"].ravel().tolist() == [0, 0, 127, 0]
    assert tail["read0.k_tail"].tolist() == [[[[np.float32(0.1)]]]]
    assert tail["read1.k_tail"].ravel().tolist() == [np.float32(0.1), np.float32(0.2)]
    assert tail["read2.k_codes"].ravel().tolist() == [0, 0, 127, 13, 25, 127]
    assert tail["stats0.bytes"].tolist() == [6 + 2 * 4 + 6 * (1 + 4)]
    cut = expected("key_groups/by-hand/cut")
    assert cut["read0.k_tail"].ravel().tolist() == [127]
    assert cut["read1.k_codes"].ravel().tolist() == [64, 127]
    gone = expected("key_groups/by-hand/evicted")
    assert gone["read0.k_codes"].ravel().tolist() == [64, 127, 0, 127]
    assert gone["read0.k_scale"].ravel().tolist() == [2, 4]
    assert gone["read1.k_tail"].ravel().tolist() == [0]
    assert gone["read1.positions"].tolist() == [[0, 2, 3]]
    assert expected("key_groups/by-hand/zero-point")["read0.k_codes"].ravel().tolist() == [0, 255, 4]
    nibbles = expected("key_groups/by-hand/nibbles")["read0.k_codes"]
    assert nibbles.tolist() == [[[[0x97, 0x01], [0xF1, 0x07]]]]


SCORES = st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.0, -math.inf, math.nan]), max_size=9)


@given(SCORES, st.integers(0, 10), st.integers(0, 3), st.integers(0, 3), st.sampled_from([1, 3, 5]))
@settings(max_examples=400, deadline=None)
def test_what_stays_is_what_the_rule_says(
    scores: list[float], budget: int, sinks: int, recent: int, pool: int
) -> None:
    """Each dropped slot against each kept one, in place of a sort."""
    assume(budget == 0 or sinks + recent <= budget)
    kept = keep(Policy("snapkv", [budget], sinks, recent, pool), 0, scores)
    L = len(scores)
    if budget == 0 or budget >= L:
        assert kept == (list(range(L)) if budget else [])
        return
    assert len(kept) == len(set(kept)) == budget
    assert kept == sorted(kept)
    protected = {s for s in range(L) if s < sinks or s >= L - recent}
    assert protected <= set(kept)
    free = [s for s in range(L) if s not in protected]

    def best(s: int) -> float | None:
        """None where all are NaN."""
        near = [scores[j] for j in free if abs(j - s) <= pool // 2 and not math.isnan(scores[j])]
        return max(near) if near else None

    for i in set(kept) - protected:
        for j in set(free) - set(kept):
            a, b = best(i), best(j)
            if a == b:
                assert i < j
            elif b is not None:
                assert a is not None
                assert a > b


def grow(script: CacheScript, draw: Draw) -> CacheScript:
    """Two rows of 6 and 4 tokens and something that was attended to; the same numbers for every script."""
    k, v = draw.normal(2, 2, 6, 4), draw.normal(2, 2, 6, 3)
    return script.append(6, [6, 4], k=k, v=v).attend(2, q=draw.normal(2, 4, 2, 4), causal=True)


def sizes(**more: Any) -> dict[str, Any]:
    return {"batch": 2, "Hq": 4, "Hkv": 2, "D": 4, "Dv": 3, **more}


@given(st.sets(st.integers(0, 6)), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_an_evicted_slot_is_a_masked_one(gone: set[int], seed: int) -> None:
    q = Draw(f"masked/{seed}").normal(2, 4, 2, 4)
    for kind in ({}, {"rope": ROPE}, {"rope": ROPE, "rope_at": "attend"}):
        evicted = (
            grow(contiguous("x", **sizes(**kind)), Draw(f"m/{seed}")).evict(*gone).attend(2, q=q, causal=True)
        )
        seen = ~np.isin(np.arange(6), list(gone))
        masked = grow(contiguous("x", **sizes(**kind)), Draw(f"m/{seed}")).attend(
            2, q=q, causal=True, mask=seen
        )
        within_bounds(evicted, masked, ("out1", "lse1"))


@given(st.integers(0, 7), st.integers(0, 2), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_heads_that_choose_the_same_are_a_plain_cache(budget: int, sinks: int, seed: int) -> None:
    """A window always chooses the same; key_norm where all heads have the same keys."""
    assume(budget == 0 or sinks <= budget)
    q = Draw(f"same/q/{seed}").normal(2, 4, 2, 4)
    one = Draw(f"same/k/{seed}").normal(2, 1, 6, 4).repeat(2, axis=1)
    for policy in ("window", "key_norm"):
        found = []
        for make in (contiguous, per_head):
            script = make("x", **sizes(track=True)).append(6, [6, 4], k=one).attend(2, q=q)
            script.evict_by(policy, budget, sinks=sinks).append(1, k=one[:, :, :1]).attend(
                2, q=q, causal=True
            )
            script.evict_by(policy, [budget] * 2 if make is per_head else budget).read(tracked=True)
            found.append(script)
        names = ("out0", "lse0", "out1", "lse1", "read0.k", "read0.v", "read0.tracked")
        within_bounds(found[0], found[1], names)


@given(st.integers(0, 99), st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_keys_turned_late_are_keys_turned_early(seed: int, budget: int) -> None:
    found = []
    for where in ("append", "attend"):
        script = grow(contiguous("x", **sizes(rope=ROPE, rope_at=where)), Draw(f"late/{seed}"))
        script.evict_by("window", budget, sinks=1).attend(2, causal=True).shift(3, 1).append(1)
        found.append(script.attend(2, causal=True).shift(-2, 1).attend(1).read(positions=True))
    early, late = within_bounds(found[0], found[1], ("out0", "out1", "out2", "out3", "lse3"))
    assert early["read0.positions"].tolist() == late["read0.positions"].tolist()
    assert not np.allclose(early["read0.k"], late["read0.k"])


def by_channel(
    column: np.ndarray, levels: int, smallest: int, zero_point: bool
) -> tuple[list[int], float, float]:
    """Codes, scale and zero of n numbers in float32, as the page says it and by no code of the oracle."""
    x = [np.float32(value) for value in column]
    low = min(x) if zero_point else np.float32(0)
    span = max(x) - low if zero_point else max(abs(value) for value in x)
    scale = np.float32(span / np.float32(levels))
    if scale == 0:
        return [0] * len(x), float(scale), float(low)
    ratios = [float(np.float32(np.float32(value - low) / scale)) for value in x]
    return (
        [min(max(round(r), smallest), levels) for r in ratios],
        float(scale),
        float(low),
    )  # round: half to even


@given(st.integers(0, 99), st.integers(1, 4), st.sampled_from(["int8", "int4"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_codes_of_key_groups_are_those_of_each_channel(
    seed: int, n: int, name: str, zero_point: bool
) -> None:
    draw = Draw(f"groups/{seed}")
    k = (draw.normal(1, 2, 7, 3) * np.exp(5 * draw.normal(1, 2, 1, 3))).astype(np.float32)
    options = {"zero_point": True} if zero_point else {}
    script = quantised("x", name, key_groups=n, batch=1, Hq=2, Hkv=2, D=3, Dv=1, **options)
    found = answers(script.append(7, k=k).read(codes=True), "f32")
    levels = {"int8": 127, "int4": 7} if not zero_point else {"int8": 255, "int4": 15}
    codes = found["read0.k_codes"]
    if name == "int4":
        low, high = codes & 0xF, codes >> 4
        codes = np.stack([low, high], axis=-1).reshape(*codes.shape[:3], -1)[..., :3].astype(np.int64)
        codes = codes if zero_point else np.where(codes > 7, codes - 16, codes)
    for h in range(2):
        for c in range(3):
            for g in range(7 // n):
                some = slice(g * n, g * n + n)
                want, scale, low_ = by_channel(
                    k[0, h, some, c], levels[name], 0 if zero_point else -levels[name], zero_point
                )
                assert codes[0, h, some, c].tolist() == want
                assert found["read0.k_scale"][0, h, g, c] == scale
                if zero_point:
                    assert found["read0.k_zero"][0, h, g, c] == low_
    np.testing.assert_array_equal(found["read0.k_tail"], k[:, :, 7 - 7 % n :])


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(1, 4), st.sampled_from(["int8", "int4"]))
@settings(max_examples=40, deadline=None)
def test_codes_do_not_depend_on_how_the_cache_was_fed(chunks: list[int], n: int, name: str) -> None:
    T = sum(chunks)
    draw = Draw(f"fed/{T}")
    k, v = draw.normal(1, 1, T, 3), draw.normal(1, 1, T, 1)
    found = []
    for feed in (chunks, [T]):
        script, start = quantised("x", name, key_groups=n, batch=1, Hq=1, Hkv=1, D=3, Dv=1), 0
        for count in feed:
            some = slice(start, start + count)
            script.append(count, k=k[:, :, some], v=v[:, :, some])
            start += count
        found.append(answers(script.read(codes=True), "f32"))
    for part, x in found[0].items():
        np.testing.assert_array_equal(x, found[1][part], err_msg=part)


@given(st.integers(0, 99), st.lists(st.integers(0, 6), max_size=3), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_group_that_changes_is_quantised_anew_from_what_it_was(seed: int, gone: list[int], n: int) -> None:
    """Evicting is restoring all, leaving slots out, and appending the rest from the first group that changes on."""
    draw = Draw(f"anew/{seed}")
    k, v = draw.normal(1, 1, 7, 3).astype(np.float32), np.ones((1, 1, 7, 1), np.float32)
    one = {"key_groups": n, "batch": 1, "Hq": 1, "Hkv": 1, "D": 3, "Dv": 1}
    before = quantised("x", "int8", **one).append(7, k=k, v=v).read()
    found = answers(quantised("x", "int8", **one).append(7, k=k, v=v).evict(*gone).read(codes=True), "f32")
    restored = answers(before, "f32")["read0.k"].astype(np.float32)
    whole = (
        min(gone, default=7) // n * n
    )  # untouched; what is quantised twice comes out the same only if it is at rest
    left = [s for s in range(whole, 7) if s not in gone]
    again = quantised("x", "int8", **one).append(whole, k=k[:, :, :whole], v=v[:, :, :whole])
    again.append(len(left), k=restored[:, :, left], v=v[:, :, left])
    for name, x in answers(again.read(codes=True), "f32").items():
        if gone:
            np.testing.assert_array_equal(x, found[name], err_msg=name)


def test_a_policy_that_fails_changes_nothing() -> None:
    script = quantised(
        "x", "int8", zero_point=True, key_groups=2, batch=1, Hq=1, Hkv=1, D=1, Dv=1, track=True
    )
    k = np.array([3e38, 3e38, -3e38, -3e38]).reshape(1, 1, 4, 1)
    script.append(4, k=k, v=np.ones((1, 1, 4, 1))).attend_uniform().evict_by("window", 3)
    inputs = {name: x.astype(np.float32) for name, x in script.inputs.items()}
    machine = Machine(script.sizes(), inputs)
    for step in script.steps[:-1]:
        machine.do(step)
    held = machine.world.caches["main"].copy()
    assert machine.do(script.steps[-1])[0] == "invalid_config"
    assert machine.world.caches["main"].rows == held.rows


@pytest.mark.parametrize("name", ["contiguous", "per_head", "int8", "key_groups"])
def test_weights_go_with_their_slots(name: str) -> None:
    """Each slot's values name it, so that its weights can be followed."""
    kinds = {"int8": {}, "key_groups": {"key_groups": 2}}
    if name in kinds:
        script: CacheScript = quantised("x", "int8", **sizes(track=True, D=1, Dv=1), **kinds[name])
    else:
        script = (per_head if name == "per_head" else contiguous)("x", **sizes(track=True, D=1, Dv=1))
    v = np.arange(1.0, 25).reshape(2, 2, 6, 1)
    script.append(6, v=v).attend(3).read(tracked=True).fork("b").reorder(1, 0).evict(2, 4).read(tracked=True)
    script.evict_by("key_norm", 3).save().reset().load().read(tracked=True)
    found = answers(script, "f32")
    known = dict(zip(np.rint(found["read0.v"]).ravel(), found["read0.tracked"].ravel(), strict=True))
    assert len(known) == 24
    for read in ("read1", "read2"):
        values, weights = np.rint(found[f"{read}.v"][..., 0]), found[f"{read}.tracked"]
        assert values.size
        assert weights.ravel().tolist() == [known[value] for value in values.ravel()]


def test_what_is_not_tracked_costs_nothing() -> None:
    script = contiguous("x").append(3).attend(2)
    config = script.sizes() | {"steps": script.steps}
    machine = Machine(config, script.inputs)
    for step in script.steps:
        machine.do(step)
    assert all(slot.reads == () for row in machine.world.caches["main"].rows for slot in row)
    assert predict_codes(config, script.inputs) == ["ok", "ok"]
    assert set(answer("kv_cache", config, script.inputs)) == {"out0", "lse0"}
