"""A benchmark against an older one: what is slower beyond noise, and what is not to be compared."""

import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from test_cli import Run, conformance, ports_folder

from conformance.bench_check import compare_benches, show_comparison
from conformance.bench_file import BenchFooter, BenchHeader, BenchReport, Cell, Sample, build_report
from conformance.errors import UsageError
from conformance.machine import Machine

__all__ = ["conformance", "ports_folder"]
MACHINE = Machine("A processor", 2, "Linux x86_64", "3.11.7", "2.4.6")
Times = Callable[[int], float]


def report(
    reference: float = 100.0,
    *,
    noise: float = 1.0,
    cpu: str = "A processor",
    threads: int = 1,
    **ports: float,
) -> BenchReport:
    """One case: the reference and some ports with so many nanoseconds, three rounds of it. 0: it failed."""
    machine = msgspec.structs.replace(MACHINE, cpu=cpu)
    header = BenchHeader(2, "", "", "", machine, "quick", 3, threads, "python", [], {})
    lines: list[Cell | Sample] = []
    for name, ns in {"python": reference, **ports}.items():
        lines.append(Cell("c", "sdpa", name, "naive", True, "pass" if ns else "fail", "" if ns else "wrong"))
        for n in range(3) if ns else ():
            lines.append(Sample("c", name, "naive", n, 0, False, 1, [ns], 1.0, 1.0))
            if name == "python":
                lines.append(Sample("c", name, "naive", n, 1, True, 1, [ns * noise], 1.0, 1.0))
    return build_report(header, lines, BenchFooter(2, 6, True, [], 1.0))


def test_the_same_again_is_no_change() -> None:
    found = compare_benches(report(x=50.0), report(x=50.0))
    assert found.ok
    assert (found.compared, found.slower, found.faster, found.notes) == (2, [], [], [])


def test_what_is_slower_is_named_with_how_far() -> None:
    found = compare_benches(report(x=50.0, y=20.0), report(x=100.0, y=10.0))
    assert not found.ok
    assert [str(change) for change in found.slower] == ["x:naive c: 2.00 times slower (noise 1.00)"]
    assert [str(change) for change in found.faster] == ["y:naive c: 2.00 times faster (noise 1.00)"]
    out = io.StringIO()
    show_comparison(found, Console(file=out, width=200))
    assert "of 3 cells 1 slower and 1 faster beyond noise, 0 gone" in out.getvalue()


def test_a_busier_machine_counts_for_nothing() -> None:
    found = compare_benches(report(x=50.0), report(reference=300.0, x=150.0))
    assert found.ok
    assert found.notes == ["the reference python:naive took 3.00 times as long in c"]


def test_within_the_noise_of_both_nothing_is_slower() -> None:
    calm, noisy = report(x=50.0), report(x=60.0, noise=1.3)
    assert compare_benches(calm, noisy).ok
    assert compare_benches(noisy, report(x=65.0)).ok
    assert not compare_benches(calm, report(x=60.0)).ok


def test_one_bad_round_is_no_regression() -> None:
    now = report(x=60.0)
    row = now.find("c", "x")
    assert row is not None
    lucky = msgspec.structs.replace(row, speed_high=2.1)  # one round in which it was as fast as before
    found = compare_benches(
        report(x=50.0), msgspec.structs.replace(now, rows=[r if r != row else lucky for r in now.rows])
    )
    assert found.ok


def test_what_is_not_timed_any_more_is_gone_and_what_was_not_asked_is_not() -> None:
    found = compare_benches(report(x=50.0, y=1.0), report(x=0.0))
    assert not found.ok
    assert found.gone == ["x:naive c: wrong"]


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (report(x=1.0, threads=2), "the baseline was timed with 1 threads, this with 2"),
        (msgspec.structs.replace(report(x=1.0), rows=[]), "no cell in common"),
        (
            msgspec.structs.replace(
                report(x=1.0), header=msgspec.structs.replace(report().header, reference="rust")
            ),
            "the baseline is relative to python, this benchmark to rust",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(now: BenchReport, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare_benches(report(x=1.0), now)


def test_another_machine_is_noted() -> None:
    assert (
        "of another machine: A processor, this is B"
        in (compare_benches(report(x=1.0), report(x=1.0, cpu="B")).notes[0])
    )


def test_a_baseline_that_is_missing_or_would_be_overwritten_is_refused_before_anything_is_timed(
    conformance: Run, tmp_path: Path
) -> None:
    status, _, err = conformance("bench", "--check", str(tmp_path / "none"))
    assert status == 2
    assert "no benchmark" in err
    file = str(tmp_path / "same.jsonl")
    status, _, err = conformance("bench", "--check", file, "--save", file)
    assert status == 2
    assert "--save FILE puts them elsewhere" in err


def test_slopes_of_an_op_that_has_none_are_refused(conformance: Run) -> None:
    status, _, err = conformance("bench", "--scaling", "--ops", "softmax", "--ports", "python")
    assert status == 2
    assert "--scaling asks sdpa only, got --ops softmax" in err
