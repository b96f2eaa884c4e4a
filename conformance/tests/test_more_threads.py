"""A variant `threads` on one, two and three threads: the honest give the same bits, and each liar is caught."""

import sys
from functools import cache

import pytest
from test_liars import FOLDER, TIMEOUTS, choose

from conformance.more_threads import check_threads
from conformance.outcome import Result
from conformance.ports import Port
from conformance.questions import EVERYTHING, Narrowing
from conformance.session import Session

LIAR = str(FOLDER / "fast_rung.py")


@cache
def results_of(lie: str) -> list[Result]:
    port = Port("liar", "Python", "port", [sys.executable, LIAR, lie])
    with Session(port, timeouts=TIMEOUTS) as session:
        session.start()
        return check_threads(session, choose("sdpa", "HiddenTile"), EVERYTHING)


def outcomes(lie: str) -> set[str]:
    return {result.judgement.outcome for result in results_of(lie)}


def test_the_honest_pass_and_what_one_thread_refuses_is_not_asked_again() -> None:
    assert outcomes("honest") == {"pass"}
    asked = {result.case for result in results_of("honest")}
    assert len(asked) == len(results_of("honest")) > 40
    assert "metamorphic/more-threads/blocks/hidden-middle" in asked
    assert not any("dropout" in case or "error" in case for case in asked)


@pytest.mark.parametrize(("lie", "threads"), [("forgets", 3), ("sum", 2)])
def test_other_bits_on_more_threads_are_caught(lie: str, threads: int) -> None:
    bad = [result for result in results_of(lie) if result.judgement.outcome == "fail"]
    assert {result.judgement.message for result in bad} == {f"other bits on {threads} threads than on one"}
    assert {result.variant for result in bad} == {"threads"}
    assert "metamorphic/more-threads/blocks/hidden-middle" in {result.case for result in bad}
    assert outcomes(lie) == {"pass", "fail"}, "nothing is no different in parts"


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ("one", "on 3 threads: expected as many threads in force as were granted, got 1"),
        ("three", "expected as many threads in force as were granted, got 3"),
    ],
)
def test_a_port_on_another_number_of_threads_has_not_been_tested(lie: str, message: str) -> None:
    assert outcomes(lie) == {"fail"}
    assert {result.judgement.message for result in results_of(lie)} == {message}


def test_without_the_variant_there_is_nothing_to_ask() -> None:
    with Session(Port("x", "X", "port", ["no-such-command"])) as session:
        assert check_threads(session, choose("sdpa", "GqaTile"), EVERYTHING) == []
    with Session(Port("x", "X", "port", [sys.executable, str(FOLDER / "honest.py")])) as session:
        session.start()
        assert check_threads(session, choose("sdpa", "GqaTile"), EVERYTHING) == []
    with Session(Port("x", "X", "port", [sys.executable, LIAR, "honest"])) as session:
        session.start()
        for narrowing in (Narrowing(variants=["naive"]), Narrowing(dtypes=["f64"]), Narrowing(match="mha/*")):
            assert check_threads(session, choose("sdpa", "GqaTile"), narrowing) == []
