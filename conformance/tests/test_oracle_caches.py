"""The reference machine of the caches: codes as the cases say them, values by hand, and one kind against another."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, find, given, settings
from hypothesis import strategies as st

from conformance import cases
from conformance.cases.cache_script import (
    CacheScript,
    LatentScript,
    contiguous,
    cross,
    paged,
    quantised,
    rotating,
)
from conformance.cases.draft import Draft
from conformance.fuzz.caches import Trace
from conformance.fuzz.draws import Chooser
from conformance.oracle import answer
from conformance.oracle.cache_pages import holders
from conformance.oracle.kv_cache import Machine, predict_codes
from conformance.realise import realise
from conformance.tensors import Tensors

DRAFTS = {draft.id.removeprefix("kv_cache/"): draft for draft in cases.drafts("kv_cache")}


def answers(script: CacheScript, dtype: str = "f64") -> Tensors:
    """What the script writes, its replay included."""
    _, expected = realise(script.draft(""), dtype)
    assert expected is not None
    return expected


def same(a: Tensors, b: Tensors, prefix: str = "") -> None:
    """Every output of `a` that begins with the prefix is the same in `b`, to the bit."""
    for name, x in a.items():
        if name.startswith(prefix):
            np.testing.assert_array_equal(x, b[name], err_msg=name)


@pytest.mark.parametrize("id_", DRAFTS)
def test_the_machine_gives_each_step_the_code_that_the_case_says(id_: str) -> None:
    draft = DRAFTS[id_]
    if draft.error is None:
        for dtype in draft.dtypes:
            inputs, _ = realise(draft, dtype, answers=False)
            assert predict_codes(draft.config, inputs) == list(draft.steps or ())


LN2 = float(np.log(2))
BY_HAND = [
    ("rotating/by-hand/decode", [1, 1.5, 7 / 3, 14 / 3]),
    ("rotating/by-hand/keep", [100, 50.5, 103 / 3, 106 / 3, 112 / 3]),
    ("rotating/by-hand/rollback", [28.5]),
    ("paged/by-hand/fork", [13 / 3, 23 / 3]),
    ("paged/by-hand/reuse", [3]),
    ("paged/by-hand/drop", [23 / 4]),
    ("latent/by-hand/parts", [0.8 * LN2]),
    ("latent/by-hand/scale", None),
    ("fork/by-hand/two-continuations", [4, 8, 1.5]),
    ("evict/by-hand", [4.5, 12]),
    ("rope/by-hand/decode", [2.937694]),
    ("rope/by-hand/chunk", [2.937694]),
    ("shift/by-hand", [2.937694]),
    ("quantised/by-hand/int8", [5]),
    ("quantised/by-hand/int4", [5]),
]


@pytest.mark.parametrize(("id_", "values"), BY_HAND)
def test_the_values_that_the_notes_give(id_: str, values: list[float] | None) -> None:
    _, expected = realise(DRAFTS[id_], "f64")
    assert expected is not None
    digits = 5e-7  # of values with six of them behind the point
    if values is None:
        assert expected["out0"].ravel() == pytest.approx([1.5 * np.log(3), 0, 0], rel=0, abs=digits)
        return
    for number, value in enumerate(values):
        assert expected[f"out{number}"].ravel()[0] == pytest.approx(value, rel=0, abs=digits)
        assert expected[f"again.out{number}"].ravel()[0] == pytest.approx(value, rel=0, abs=digits)


def test_the_long_prefill_and_the_rows_by_hand() -> None:
    _, expected = realise(DRAFTS["rotating/by-hand/long-prefill"], "f64")
    assert expected is not None
    assert expected["out0"].ravel() == pytest.approx([1, 1.5, 7 / 3, 14 / 3, 28 / 3])
    assert expected["read0.positions"].tolist() == [[3, 4]]
    _, expected = realise(DRAFTS["paged/by-hand/padding"], "f64")
    assert expected is not None
    assert expected["out1"].ravel() == pytest.approx([15 / 4, 48])
    _, expected = realise(DRAFTS["padding/by-hand/left"], "f64")
    assert expected is not None
    assert expected["out0"][0].ravel() == pytest.approx([0, 0, 4])
    assert expected["out0"][1].ravel() == pytest.approx([1, 1.5, 2])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 5), st.lists(st.integers(0, 5), min_size=2, max_size=2)),
        st.tuples(st.just("attend"), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("truncate"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("reorder"), st.integers(0, 1), st.integers(0, 1)),
        st.tuples(st.just("reset")),
    ),
    max_size=12,
)


def grow(script: CacheScript, steps: list[Any], **attend: Any) -> CacheScript:
    """The steps on the script; truncate is by what each row gives up."""
    held = [0, 0]
    for step in steps:
        if step[0] == "append":
            lengths = [min(n, step[1]) for n in step[2]]
            script.append(step[1], lengths)
            held = [n + more for n, more in zip(held, lengths, strict=True)]
        elif step[0] == "attend":
            script.attend(step[1], **{"causal": step[2], **attend})
        elif step[0] == "truncate":
            held = [max(0, n - less) for n, less in zip(held, step[1:], strict=True)]
            script.truncate(*held)
        elif step[0] == "reorder":
            script.reorder(*step[1:])
            held = [held[b] for b in step[1:]]
        else:
            script.reset()
            held = [0, 0]
    return script.read(positions=True)


@given(STEPS, st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_pages_change_nothing(steps: list[Any], page_size: int) -> None:
    same(answers(grow(contiguous("x"), steps)), answers(grow(paged("x", page_size, 200), steps)))


@given(STEPS, st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_rotating_cache_is_a_plain_one_with_a_window(steps: list[Any], window: int) -> None:
    """Every query is one of the last append, so that nothing it may see is gone."""
    forward = [(*step[:1], 1, *step[2:]) if step[0] == "attend" else step for step in steps]
    forward = [step for step in forward if step[0] != "truncate"]
    plain = grow(contiguous("x"), forward, causal=True, window=[window - 1, None])
    same(answers(plain), answers(grow(rotating("x", window), forward)), "out")


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_a_latent_cache_is_a_plain_one_with_one_head(steps: list[Any]) -> None:
    latent = grow(LatentScript("x"), steps)
    plain = CacheScript("x", {"kind": "contiguous"}, batch=2, Hq=3, Hkv=1, D=7, Dv=5)
    config = plain.sizes() | {"steps": latent.draft("").config["steps"]}
    inputs = dict(latent.draft("").inputs)
    for step in config["steps"]:
        if step["do"] == "append":
            both = np.concatenate([inputs[step["latent"]], inputs[step["rope_key"]]], axis=-1)
            step["k"], step["v"] = f"k of {step['latent']}", step["latent"] + " as v"
            inputs[step["k"]], inputs[step["v"]] = both[:, None], inputs[step["latent"]][:, None]
    for name, x in answer("kv_cache", config, inputs).items():
        if name.startswith("out"):
            np.testing.assert_array_equal(x, answers(latent)[name])


@pytest.mark.parametrize("name", ["f16", "bf16", "fp8_e4m3", "int8", "int4"])
def test_a_quantised_cache_attends_to_what_it_reads(name: str) -> None:
    script = quantised("x", name).append(6, [6, 3]).read().attend(2, causal=True)
    found = answers(script, "f32")
    plain = contiguous("x").append(6, [6, 3], k=found["read0.k"], v=found["read0.v"]).read()
    plain.attend(2, q=script.inputs["q0"], causal=True)
    same(answers(plain, "f32"), found, "out")


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_a_failed_step_changes_nothing_and_a_replay_is_the_same(data: st.DataObject) -> None:
    found = Trace(Chooser(data.draw))
    for _ in range(8):
        found.step()
    assume(all(step["do"] not in ("load", "save") for step in found.script.steps))  # a file outlives a reset
    draft = found.script.draft("")
    codes = predict_codes(draft.config, draft.inputs)
    written = answer("kv_cache", draft.config, draft.inputs)  # failed steps too
    for name, x in written.items():
        if not name.startswith("again."):
            np.testing.assert_array_equal(written[f"again.{name}"], x, err_msg=name)
    kept = [n for n, code in enumerate(codes) if code == "ok"]
    config = draft.config | {"steps": [draft.config["steps"][n] for n in kept]}
    same(written, answer("kv_cache", config, draft.inputs))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_pages_are_neither_lost_nor_held_without_a_slot(data: st.DataObject) -> None:
    found = Trace(Chooser(data.draw))
    for _ in range(12):
        found.step()
        machine = found.machine
        if found.kind != "paged":
            continue
        assert len(holders(machine.world)) <= machine.sizes.num_pages
        for cache in machine.world.caches.values():
            for row, table in zip(cache.rows, cache.tables, strict=True):
                assert len(table) == -(-len(row) // machine.sizes.page_size)
                assert len(set(table)) == len(table)


@pytest.mark.parametrize(
    "kind", sorted({draft.config.get("kind") or "contiguous" for draft in DRAFTS.values()})
)
def test_every_kind_that_has_cases_is_drawn(kind: str) -> None:
    drawn = settings(phases=[Phase.generate], max_examples=500)  # the smallest one is no better
    found = find(st.data(), lambda data: Trace(Chooser(data.draw)).kind == kind, settings=drawn)
    assert found is not None


def test_a_fork_changes_nothing_in_its_origin() -> None:
    for script in (contiguous("x"), rotating("x", 3), paged("x", 2, 30), quantised("x", "int8"), cross("x")):
        script.append(4, [4, 1]).fork("b")
        alone = Machine(script.sizes(), script.inputs)
        for step in script.steps:
            alone.do(step)
        before = alone.do({"do": "read", "out": "r"})[1]
        alone.do({"do": "reset", "cache": "b"})
        if script.kind["kind"] != "cross":
            alone.do({"do": "truncate", "lengths": [1, 0], "cache": "b"})
        after = alone.do({"do": "read", "out": "r"})[1]
        assert before is not None
        assert after is not None
        same(before.tensors, after.tensors)  # type: ignore[union-attr]


def test_a_draft_without_main_is_not_replayed() -> None:
    draft: Draft = contiguous("x").append(1).fork("b").drop("main").read(cache="b").draft("")
    assert [step["do"] for step in draft.config["steps"]] == ["append", "fork", "drop", "read"]
    assert len(draft.steps or ()) == 4
