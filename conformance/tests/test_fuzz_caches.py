"""Cache traces and twins: a liar breaks the property that it lies about, and what is right keeps them all."""

import io
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from rich.console import Console
from test_liars import FOLDER

from conformance.bounds.eviction import find_undecided
from conformance.case import Suite
from conformance.cases.cache_script import contiguous
from conformance.fixtures import LoadedSuite, load_folder
from conformance.fuzz import cache_twins, campaign, twin_check
from conformance.fuzz.cache_twins import TWINS, Twin
from conformance.fuzz.campaign import (
    Disagreement,
    Drawn,
    draw_question,
    run_campaign,
    write_disagreement,
    write_question,
)
from conformance.fuzz.draws import Chooser
from conformance.fuzz.twin_check import check_twin
from conformance.outcome import Judgement, Result
from conformance.ports import Port
from conformance.questions import Question, list_questions
from conformance.realise import realise
from conformance.run import Asker
from conformance.session import Session
from conformance.tensors import Tensors

SEED = 1
MACHINE = "machine_port"


def repeat(count: int, test: Callable[[st.DataObject], None]) -> None:
    """So many draws; ends at the first that fails. The same ones as long as no constant in the sources changes."""
    settings = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    hypothesis.seed(SEED)(settings(hypothesis.given(st.data())(test)))()


def port(command: str, *, fixed_order: bool = False) -> Port:
    script, *arguments = command.split()
    words = [sys.executable, str(FOLDER / f"{script}.py"), *arguments]
    return Port(command, "Python", "port", words, fixed_order=fixed_order)


class Broken(AssertionError):
    """A twin that a port breaks."""


def check(command: str, draw: Callable[[Chooser], Twin], count: int, *, fixed_order: bool = False) -> int:
    """Draws so many twins; of how many something was compared in a port that claims them. Raises Broken."""
    asked = compared = 0
    with Session(port(command, fixed_order=fixed_order)) as session, tempfile.TemporaryDirectory() as name:
        claims = session.start()
        asker, folder = Asker(session, Path(name)), Path(name) / "questions"

        def ask(data: st.DataObject) -> None:
            nonlocal asked, compared
            twin = draw(Chooser(data.draw))
            for draft in twin.drafts:
                inputs, _ = realise(draft, "f32", answers=False)
                hypothesis.assume(not find_undecided(draft.config, inputs, draft.steps, "f32"))
            asked += 1
            cases = [
                write_question(replace(draft, id=f"fuzz/kv_cache/{asked}-{n}"), "f32", folder)
                for n, draft in enumerate(twin.drafts)
            ]
            suite = LoadedSuite(Suite("fuzz", 1, cases), folder)
            questions = [q for q in list_questions(claims, [suite]) if not q.unclaimed]
            if len(questions) == len(cases):
                judgement = check_twin(session, asker, twin, questions).judgement
                if judgement != Judgement("pass"):
                    raise Broken(judgement.message)
                compared += bool(twin.pairs)

        repeat(count, ask)
    return compared


@pytest.mark.parametrize("draw", TWINS, ids=lambda draw: draw.__name__)
def test_the_reference_keeps_every_property_to_the_bit(draw: Callable[[Chooser], Twin]) -> None:
    assert check(MACHINE, draw, 12, fixed_order=True) >= 8


@pytest.mark.parametrize(
    ("command", "twin", "message"),
    [
        ("cache_bugs square", "chunks", "chunks: out0 and out0"),
        ("cache_rows stale", "replay", "replay: "),
        ("cache_lives fails", "failure", "failure: read"),
        ("cache_lives same", "fork", "fork: read"),
        ("cache_pages adds", "paged", "paged: "),
        ("cache_windows early", "rotating", "rotating: "),
        ("cache_codes scale", "dequantised", "dequantised: "),
        ("cache_policies mean", "evicted", "evicted: "),
        ("cache_rows longest", "row_alone", "row-alone: "),
    ],
)
def test_a_liar_breaks_the_property_without_any_expected_value(command: str, twin: str, message: str) -> None:
    with pytest.raises(Broken, match=message):
        check(command, getattr(cache_twins, twin), 120)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda written: {name: x[..., :0] for name, x in written.items()}, "must have the shape"),
        (lambda written: written | {"more": np.zeros(1)}, r"more \[1\] was not asked for"),
    ],
)
def test_a_wrong_shape_or_name_is_a_failure_like_any_other(
    spoil: Callable[[Tensors], Tensors], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = twin_check.read_tensors
    monkeypatch.setattr(twin_check, "read_tensors", lambda path: spoil(honest(path)))
    with pytest.raises(Broken, match=message):
        check(MACHINE, cache_twins.paged, 12)


def test_every_kind_and_step_is_drawn() -> None:
    drawn: Counter[str] = Counter()
    longest = 0

    def draw(data: st.DataObject) -> None:
        nonlocal longest
        draft = draw_question(data.draw, "kv_cache").draft
        config = draft.config
        drawn.update([config["kind"], *(f for f in ("track", "rope_at", "key_groups") if config.get(f))])
        longest = max(longest, len(config["steps"]))
        for step, code in zip(config["steps"], draft.steps or (), strict=True):
            drawn[step["do"]] += 1
            if step.get("policy"):
                drawn[f"{step['policy']['type']} {code}"] += 1
                drawn["list"] += isinstance(step["policy"]["budget"], list)
        if any(step.get("policy") for step in config["steps"]):
            inputs, _ = realise(draft, draft.dtypes[0], answers=False)
            assert find_undecided(config, inputs, draft.steps, draft.dtypes[0]) == []

    repeat(400, draw)
    kinds = ("contiguous", "rotating", "paged", "quantised", "latent", "cross", "per_head")
    policies = ("window", "key_norm", "snapkv", "heavy_hitters")
    expected = {*kinds, "track", "rope_at", "key_groups", "list", *(f"{policy} ok" for policy in policies)}
    assert expected <= set(drawn), expected - set(drawn)
    assert longest >= 60


@pytest.mark.parametrize(
    ("first", "complete", "outcome"),
    [(False, False, "unsupported"), (True, False, "fail"), (False, True, "fail")],
)
def test_a_later_variant_may_refuse_a_twin(tmp_path: Path, first: bool, complete: bool, outcome: str) -> None:
    draft = contiguous("x").append(2).attend(1).draft("")
    twin = Twin("any", (draft,), (), cache_twins.BITS)
    case = write_question(draft, "f32", tmp_path)
    suite = LoadedSuite(Suite("fuzz", 1, [case]), tmp_path)
    answer = {"status": "unsupported", "feature": "track"}
    session: Any = SimpleNamespace(port=port("x"), run=lambda request: answer)
    asker: Any = SimpleNamespace(request=lambda question, want: {"outputs": str(tmp_path / "out")})
    question = Question(suite, case, "f32", "simd", first, complete=complete)
    judgement = check_twin(session, asker, twin, [question]).judgement
    assert (judgement.outcome, "track" in judgement.message) == (outcome, True)


def test_a_broken_twin_is_written_as_two_cases(tmp_path: Path) -> None:
    drawn: list[Drawn] = []

    def draw(data: st.DataObject) -> None:
        found = draw_question(data.draw, "kv_cache")
        drawn.extend([found] if len(found.drafts) == 2 and not drawn else [])

    repeat(40, draw)
    result = Result("p", "metamorphic", "c", "f32", "naive", Judgement("fail", "not the same"))
    folder = write_disagreement(Disagreement(drawn[0], [result]), tmp_path, 7)
    suite = load_folder(folder).suite
    assert [case.id for case in suite.cases] == ["fuzz/kv_cache", "fuzz/kv_cache-twin"]
    assert "not the same" in suite.cases[1].note


def test_a_long_campaign_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "LONG", 100)
    for count in (99, 100):
        said = io.StringIO()
        run_campaign([port("honest")], ["gelu"], count, 4, tmp_path, Console(file=said, width=100))
        assert ("gelu: 50 of 100, " in said.getvalue()) == (count == 100)
        assert (" a second" in said.getvalue()) == (count == 100)
