"""The tables at the end of `make compare`: whole, right, and never wider than 100 columns."""

import io
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from synthetic import BENCH_CASES, PORTS, minilm, suites, write_bench, write_report

from conformance import compare
from conformance.bench_file import read_bench
from conformance.compare import Findings, show
from conformance.kv_bytes import KvBytesFooter, run_kv_bytes
from conformance.outcome import Judgement, Result
from conformance.page_minilm import write_minilm
from conformance.report import PortRecord
from conformance.table import box_of, mean_speed, print_narrow, result_tables
from conformance.tally import shorten, show_ns, show_ratio, show_share, tally


def printed(folder: Path, *, terminal: bool, width: int) -> str:
    report = write_report(folder / "report.jsonl", suites())
    assert report is not None
    write_bench(folder / "bench.jsonl")
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=width, color_system=None)
    bench = read_bench(folder / "bench.jsonl")
    show(Findings(report, bench), console)
    return out.getvalue()


@pytest.mark.parametrize(("terminal", "width"), [(True, 200), (True, 100), (False, 80), (False, 300)])
def test_the_tables_fit_100_columns(tmp_path: Path, terminal: bool, width: int) -> None:
    text = printed(tmp_path, terminal=terminal, width=width)
    assert max(len(line) for line in text.splitlines()) <= 100
    for name in [*PORTS, "sdpa", "kv_cache", "nasty", "protocol"]:
        assert name in text
    for case in BENCH_CASES:
        assert case.removeprefix("bench/") in text
    assert "…" not in text


def test_a_file_gets_plain_text(tmp_path: Path) -> None:
    text = printed(tmp_path, terminal=False, width=80)
    assert "\x1b" not in text
    assert not set("─│┃━╭") & set(text)


def test_the_numbers_are_those_of_the_report(tmp_path: Path) -> None:
    text = printed(tmp_path, terminal=False, width=80)
    assert "10 / 2 / 0" in text  # julia in sdpa: six cases in two dtypes
    assert "2 / 0 / 2" in text  # torch in kv_cache: fused has none
    assert "4e+04×" in text


def run_compare(monkeypatch: pytest.MonkeyPatch, folder: Path, **parts: bool) -> tuple[int, str]:
    """`compare` with made-up parts, each of them right or wrong."""
    report = write_report(folder / "report.jsonl", suites(), failing=not parts["judged"])
    assert report is not None
    write_bench(folder / "bench.jsonl")
    bench = read_bench(folder / "bench.jsonl")
    footer = msgspec.structs.replace(bench.footer, ok=parts["timed"], problems=["too slow"])
    bench = msgspec.structs.replace(bench, footer=footer)
    write_minilm(*minilm(), folder / "minilm.jsonl")
    monkeypatch.setattr(compare, "load_suites", lambda ops, include_bench: [])
    monkeypatch.setattr(compare, "run_conformance", lambda *_: report.footer)
    monkeypatch.setattr(compare, "run_bench", lambda *_: bench)
    told = run_kv_bytes([], folder / "kv-bytes.jsonl", tokens=2)
    told = replace(told, footer=KvBytesFooter([] if parts["told"] else ["p: none"]))
    monkeypatch.setattr(compare, "run_kv_bytes", lambda *_: told)
    out = io.StringIO()
    status = compare.compare([], [], site=folder, console=Console(file=out, width=100))
    return status, out.getvalue()


def test_when_all_is_well_the_last_line_is_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, text = run_compare(monkeypatch, tmp_path, judged=True, told=True, timed=True)
    assert status == 0
    assert text.splitlines()[-1].endswith(str(tmp_path / "index.html"))
    assert (tmp_path / "index.html").exists()
    assert "wrong" not in text
    assert text.count("all 12 embeddings equal") == len(PORTS)


@pytest.mark.parametrize(
    ("part", "said"), [("judged", "conformance: 2"), ("told", "kv-bytes: p: none"), ("timed", "speed: too")]
)
def test_one_wrong_part_is_said_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str, said: str
) -> None:
    parts = {"judged": True, "told": True, "timed": True} | {part: False}
    status, text = run_compare(monkeypatch, tmp_path, **parts)
    assert status == 1
    assert f"wrong: {said}" in text
    assert (tmp_path / "index.html").exists()
    assert "noise" in text


def test_many_ports_stand_in_tables_below(tmp_path: Path) -> None:
    ports = [PortRecord(f"a-port-with-a-long-name-{n}", "Language", "peer") for n in range(12)]
    results = [
        Result(port.name, "a-long-name-of-a-suite", "x", "f32", "naive", Judgement("pass", share=0.5))
        for port in ports
    ]
    out = io.StringIO()
    console = Console(file=out, width=100)
    tables = result_tables(results, ports, None, box_of(console))
    print_narrow(console, *tables)
    assert len(tables) == 3
    assert max(len(line) for line in out.getvalue().splitlines()) <= 100
    assert out.getvalue().count("1 / 0 / 0") == 2 * len(ports)


def test_the_mean_speed_is_geometric_and_of_the_readable_variant(tmp_path: Path) -> None:
    write_bench(tmp_path / "bench.jsonl")
    bench = read_bench(tmp_path / "bench.jsonl")
    assert mean_speed(bench, "python", None)[0] == pytest.approx(1)
    assert mean_speed(bench, "rust", "sdpa")[0] == pytest.approx(0.21, rel=0.1)
    assert 0 < mean_speed(bench, "rust", "sdpa")[1] < 0.1
    assert mean_speed(bench, "rust", "mha") == (0, 0)
    assert mean_speed(None, "rust", None) == (0, 0)


def test_counts_take_every_outcome() -> None:
    rng = random.Random(3)
    outcomes = ["pass", "fail", "error", "crash", "timeout", "unsupported"]
    results = [
        Result("p", "s", f"c{n}", "f32", "naive", Judgement(outcome, share=n / 10))  # type: ignore[arg-type]
        for n, outcome in enumerate(outcomes)
    ]
    rng.shuffle(results)
    found = tally(results)
    assert (found.passed, found.failed, found.unsupported) == (1, 4, 1)
    assert (found.share, found.worst) == (0.5, "c5")


def test_a_share_that_is_no_number_is_the_worst() -> None:
    results = [
        Result("p", "s", str(x), "f32", "naive", Judgement("fail", share=x)) for x in (2, float("nan"), 3)
    ]
    assert tally(results).worst == "nan"
    assert show_share(tally(results).share) == "NaN"


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "exact"), (1e-9, "< 1 %"), (0.337, "34 %"), (1, "100 %"), (3.14, "3.1×"), (41000, "4e+04×")],
)
def test_shares_are_short(share: float, shown: str) -> None:
    assert show_share(share) == shown


@pytest.mark.parametrize(
    ("ratio", "noise", "shown"),
    [
        (1.04, 0.05, "≈"),
        (0.96, 0.05, "≈"),
        (1.06, 0.05, "1.06×"),
        (0.07, 0, "0.070×"),
        (0.0001, 0, "1e-04×"),
        (12.34, 0, "12.3×"),
    ],
)
def test_a_difference_within_the_noise_is_none(ratio: float, noise: float, shown: str) -> None:
    assert show_ratio(ratio, noise) == shown


def test_a_port_that_only_crashed_used_no_share_of_any_bound() -> None:
    assert not tally([Result("p", "s", "c", "f32", "-", Judgement("crash"))]).measured
    assert tally([Result("p", "s", "c", "f32", "-", Judgement("pass"))]).measured
    assert shorten("it died\n  stderr: a\n  stderr: ImportError: b\n") == "it died … stderr: ImportError: b"
    assert shorten("one line") == "one line"
    assert shorten("") == ""


def test_times_have_the_unit_that_fits() -> None:
    assert [show_ns(ns) for ns in (12.3, 999, 1234, 5.6e7, 2e9)] == [
        "12.3 ns", "999 ns", "1.23 µs", "56.0 ms", "2.00 s",
    ]  # fmt: skip
