"""The two divisions of a benchmark: the same algorithm everywhere, and the best of each."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from synthetic import write_bench

from conformance.bench_divisions import BEST, Division, divide
from conformance.bench_file import (
    BenchFooter,
    BenchHeader,
    BenchReport,
    Cell,
    Sample,
    build_report,
    read_bench,
)
from conformance.bench_text import show_bench
from conformance.machine import Machine
from conformance.report import PortRecord

TIMES = {
    ("python", "naive"): 100.0,
    ("python", "flash"): 200.0,
    ("rust", "naive"): 400.0,
    ("rust", "flash"): 50.0,
    ("rust", "simd"): 10.0,
    ("peer", "naive"): 25.0,
}


def report(times: dict[tuple[str, str], float]) -> BenchReport:
    """One case with these times, in one round."""
    kinds = {port: "peer" if port == "peer" else "port" for port, _ in times}
    records = [PortRecord(port, "X", kind) for port, kind in kinds.items()]
    header = BenchHeader(2, "", "", "", Machine("", 1, "", "", ""), "quick", 1, 1, "python", records, {})
    lines: list[Cell | Sample] = []
    for (port, variant), ns in times.items():
        lines.append(Cell("c", "sdpa", port, variant, variant == "naive", "pass"))
        lines.append(Sample("c", port, variant, 0, 0, False, 1, [ns], 1.0, 1.0))
    return build_report(header, lines, BenchFooter(1, 1, True, [], 1.0))


def ratios(division: Division) -> dict[str, float]:
    (row,) = division.rows
    return {port: entry.ratio for port, entry in zip(division.ports, row[1], strict=True) if entry}


def test_an_algorithm_is_compared_with_itself_and_peers_are_only_among_the_best() -> None:
    naive, flash, best = divide(report(TIMES))
    assert [d.title for d in (naive, flash, best)] == ["same algorithm: naive", "same algorithm: flash", BEST]
    assert ratios(naive) == {"python": 1, "rust": 0.25}
    assert ratios(flash) == {"python": 1, "rust": 4}
    assert ratios(best) == {"python": 1, "rust": 10, "peer": 4}
    assert [entry.row.variant for entry in best.rows[0][1] if entry] == ["naive", "simd", "naive"]
    assert best.mean("rust") == pytest.approx(10)


def test_an_algorithm_of_one_port_is_no_division() -> None:
    alone = {key: ns for key, ns in TIMES.items() if key != ("rust", "flash")}
    assert [d.title for d in divide(report(alone))] == ["same algorithm: naive", BEST]
    assert divide(report({("python", "naive"): 1.0})) == []


def test_without_a_rung_of_the_reference_another_port_leads() -> None:
    others = {("python", "naive"): 100.0, ("rust", "flash"): 50.0, ("julia", "flash"): 25.0}
    flash = next(d for d in divide(report(others)) if d.title.endswith("flash"))
    assert (flash.reference, ratios(flash)) == ("rust", {"rust": 1, "julia": 2})


def test_what_failed_is_in_no_division() -> None:
    bench = report(TIMES)
    rows = [
        msgspec.structs.replace(row, outcome="fail", speed=0.0) if row.variant == "simd" else row
        for row in bench.rows
    ]
    best = divide(msgspec.structs.replace(bench, rows=rows))[-1]
    assert [entry.row.variant for entry in best.rows[0][1] if entry] == ["naive", "flash", "naive"]


def test_both_are_printed(tmp_path: Path) -> None:
    write_bench(tmp_path / "bench.jsonl")
    out = io.StringIO()
    show_bench(read_bench(tmp_path / "bench.jsonl"), Console(file=out, width=200))
    text = out.getvalue()
    assert "same algorithm: naive   (times as fast as python)" in text
    assert "best of each   (times as fast as python)" in text
    assert "simd 11" in text
