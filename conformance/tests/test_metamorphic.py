"""The checks that need no expected value: the honest pass them, and each liar fails the one it should."""

import sys
from functools import cache

import pytest
from test_liars import FOLDER, TIMEOUTS, suites_of

from conformance.known_failures import BAD
from conformance.metamorphic import CASES_EACH, RELATIONS, check_relations, choose_cases
from conformance.outcome import Result
from conformance.ports import Port
from conformance.questions import EVERYTHING, Narrowing
from conformance.session import Session


@cache
def relations_of(script: str) -> list[Result]:
    port = Port(
        name=script, language="Python", kind="port", command=[sys.executable, str(FOLDER / f"{script}.py")]
    )
    with Session(port, timeouts=TIMEOUTS, max_restarts=2) as session:
        session.start()
        return check_relations(session, suites_of("sdpa"), EVERYTHING)


def failed(script: str) -> set[str]:
    """The relations in which the port failed."""
    return {r.case.split("/")[1] for r in relations_of(script) if r.judgement.outcome in BAD}


def test_every_relation_finds_cases_enough() -> None:
    for relation in RELATIONS:
        assert 5 <= len(list(choose_cases(relation, suites_of("sdpa")))) <= CASES_EACH, relation.name


def test_the_honest_pass() -> None:
    assert failed("honest") == set()
    for r in relations_of("honest"):
        refused = r.variant == "blocked" and "/dropout/" in r.case
        wanted = ("unsupported", "unsupported: dropout") if refused else ("pass", "")
        assert (r.judgement.outcome, r.judgement.message) == wanted, r.case
    assert len({(r.case, r.variant) for r in relations_of("honest")}) == len(relations_of("honest"))


@pytest.mark.parametrize(
    ("script", "relation"),
    [("noisy", "same-again"), ("tile", "repeated-heads"), ("nan_leak", "junk-beyond-length")],
)
def test_a_liar_fails_the_relation_that_it_breaks(script: str, relation: str) -> None:
    assert relation in failed(script)
    assert len(failed(script)) < len(RELATIONS)


def test_narrowing_leaves_them_out() -> None:
    with Session(Port("x", "X", "port", ["no-such-command"])) as session:
        assert check_relations(session, suites_of("sdpa"), EVERYTHING) == []
    with Session(Port("x", "X", "port", [sys.executable, str(FOLDER / "honest.py")])) as session:
        session.start()
        assert check_relations(session, suites_of("sdpa"), Narrowing(dtypes=["f64"])) == []
        assert check_relations(session, suites_of("softmax"), EVERYTHING) == []
