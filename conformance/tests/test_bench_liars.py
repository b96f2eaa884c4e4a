"""Ports that lie about their times, or that answer `bench` before they have computed: the bench must tell."""

from pathlib import Path

import pytest
from test_bench import MS, TIMED, bench_port, run

from conformance.bench_answers import BadTimes, check_believable

# Answers at once, and computes afterwards.
EARLY = """
def bench(request):
    say({**ok(request), "first_ns": NS, "evals": 1, "samples_ns": [NS] * request["samples"]})
    time.sleep(0.3)
    if "outputs" in request:
        answer(request)

for request in requests():
    bench(request)
"""
# Honest while it is being judged; afterwards the answer comes at once, whatever would have to be computed.
NOTHING_DONE = """
def bench(request):
    if "outputs" in request:
        answer(request)
        return {**ok(request), "first_ns": NS, "evals": 1, "samples_ns": [NS] * request["samples"]}
    return {**ok(request), "first_ns": NS, "evals": 1, "samples_ns": [50] * request["samples"]}

for request in requests():
    say(bench(request))
"""


def fault_of(folder: Path, script: str, ns: int = MS) -> str:
    """What is said of the liar, whose row must have failed without a time."""
    report = run(folder, bench_port(folder, "python", MS), bench_port(folder, "liar", ns, script))
    row = report.find("bench/x", "liar")
    assert row is not None
    assert (row.outcome, row.rounds, row.speed) == ("fail", 0, 0)
    assert not report.footer.ok
    assert any(problem.startswith("liar:naive bench/x: fail") for problem in report.footer.problems)
    honest = report.find("bench/x", "python")
    assert honest is not None
    assert (honest.outcome, honest.rounds) == ("pass", 3)
    return row.message


def test_an_honest_one_is_not_accused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        fault_of(tmp_path, TIMED)


def test_one_that_answers_before_it_computes_has_no_result_yet(tmp_path: Path) -> None:
    assert "output" in fault_of(tmp_path, right() + EARLY)


def test_one_that_computes_only_while_it_is_judged_is_faster_than_the_machine(tmp_path: Path) -> None:
    message = fault_of(tmp_path, right() + NOTHING_DONE)
    assert "samples_ns: 50 ns for 8000000 floating-point operations, which no machine does" in message


def test_one_that_stops_computing_is_judged_again_in_the_last_round(tmp_path: Path) -> None:
    once = TIMED.replace(
        "        answer(request)\n",
        "        answer(request)\n        KNOWN.update({name: 0 * x for name, x in KNOWN.items()})\n",
    )
    assert once != TIMED
    assert fault_of(tmp_path, once).startswith("in the last round: ")


def test_one_that_claims_more_time_than_passed_is_told(tmp_path: Path) -> None:
    slow = TIMED.replace('time.sleep(NS * 1e-9 * request["samples"])', "pass")
    assert slow != TIMED
    assert "s of samples in a request that took" in fault_of(tmp_path, slow, 1000 * MS)


def test_what_can_be_is_believed() -> None:
    answer = {"evals": 10, "samples_ns": [100.0, 200.0]}
    check_believable(answer, 3.0e-6, 50_000, 500.0)
    with pytest.raises(BadTimes, match="in a request that took"):
        check_believable(answer, 2.9e-6, 50_000, 500.0)
    with pytest.raises(BadTimes, match="more than 499 GFLOP/s"):
        check_believable(answer, 3.0e-6, 50_000, 499.0)


def right() -> str:
    """The text of a port that knows the answer."""
    return TIMED[: TIMED.index("def bench")]
