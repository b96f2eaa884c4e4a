"""Cases that are only timed, and how time grows with the length."""

import io
import math
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fakes import fake_port
from rich.console import Console
from synthetic import PORTS, suites, write_bench, write_report
from test_bench_goals import report
from test_memory import PORT
from test_run import RIGHT, case, make_suite

from conformance import bench_suites
from conformance.bench_file import BenchReport, Memory, Sample, read_bench
from conformance.bench_goals_text import render
from conformance.bench_memory import measure_memory
from conformance.bench_plan import QUICK, Rates
from conformance.bench_rounds import check_cell, list_cells
from conformance.bench_scaling import Curve, find_curves, fit, show_scaling
from conformance.bench_scaling_text import scaling_table
from conformance.bench_suites import load_bench_suite
from conformance.cases import bench_grid
from conformance.cases.bench_grid import Shape
from conformance.features import cost
from conformance.memory import can_measure
from conformance.page import draw
from conformance.ports import Port
from conformance.realise import realise
from conformance.run import Asker
from conformance.session import Session


def scaling(folder: Path) -> BenchReport:
    """The synthetic benchmark with its cases renamed: prefill grows as T^2, decode as Tk."""
    write_bench(folder / "scaling.jsonl")
    text = (folder / "scaling.jsonl").read_text().splitlines()
    names = {
        "bench/softmax/rows-512": ("bench/scaling/prefill/512", 512**2),
        "bench/sdpa/prefill-256": ("bench/scaling/prefill/1024", 1024**2),
        "bench/sdpa/decode-gqa-1024": ("bench/scaling/decode/1024", 1024),
        "bench/kv_cache/decode-one-by-one": ("bench/scaling/decode/4096", 4096),
    }
    lines = []
    for line in text:
        found = msgspec.json.decode(line)
        if "case" in found:
            found["case"], ns = names[found["case"]]
            if "samples_ns" in found:
                found["samples_ns"] = [float(ns)] * 5
        lines.append(msgspec.json.encode(found))
    (folder / "scaling.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return read_bench(folder / "scaling.jsonl")


def test_the_slope_is_the_exponent() -> None:
    assert fit({n: 3.0 * n**1.5 for n in (64, 256, 1024)}) == pytest.approx(1.5)
    bent = {64: 1.0, 128: 2.0, 256: 4.0, 512: 16.0}  # slopes 1, 1 and 2 by halves: nearest to all is 1.3
    assert fit(bent) == pytest.approx(1.3)


def test_short_calls_are_no_part_of_it_and_one_point_is_no_slope() -> None:
    flat_then_square = {64: 100.0, 128: 100.0, 256: 100.0, 512: 512.0**2, 1024: 1024.0**2, 2048: 2048.0**2}
    assert Curve("prefill", "p", "naive", flat_then_square).exponent == pytest.approx(2)
    assert Curve("prefill", "p", "naive", {256: 1.0, 512: 2.0}).exponent is None
    assert Curve("decode", "p", "naive", {}).exponent is None


def test_curves_and_slopes_are_printed_and_drawn(tmp_path: Path) -> None:
    bench = scaling(tmp_path)
    curves = find_curves(bench)
    assert {(c.what, round(c.exponent or 0, 9)) for c in curves if c.variant != "fused"} == {
        ("prefill", 2.0), ("decode", 1.0),
    }  # fmt: skip
    assert [c.what for c in curves] == sorted((c.what for c in curves), reverse=True)
    out = io.StringIO()
    show_scaling(bench, Console(file=out, width=200))
    assert "T^2.00" in out.getvalue()
    assert "Tk^1.00" in out.getvalue()
    write_report(tmp_path / "report.jsonl", suites())
    page = draw(tmp_path, suites()).read_text()
    assert "Against the length" in page
    assert page.count("<polyline") >= 2 * len(PORTS)
    assert "python naive T^2.00" in page


def test_a_benchmark_of_other_cases_has_no_slopes(tmp_path: Path) -> None:
    write_bench(tmp_path / "bench.jsonl")
    out = io.StringIO()
    show_scaling(read_bench(tmp_path / "bench.jsonl"), Console(file=out))
    assert out.getvalue() == ""


def test_its_report_has_a_table_of_its_own_for_the_documents(tmp_path: Path) -> None:
    bench = scaling(tmp_path)
    lines = scaling_table(bench).splitlines()
    assert lines[0] == "| | prefill, T = 1,024 | decode, Tk = 4,096 |"
    row = next(line for line in lines if line.startswith("| python `naive`"))
    assert row.count(", T^2.00 ") == row.count(", Tk^1.00 ") == 1
    header = msgspec.structs.replace(bench.header, mode="scaling")
    assert list(render(msgspec.structs.replace(bench, header=header))) == ["scaling", "scaling run"]
    assert "scaling" not in render(bench)


SMALL = (
    Shape("whole", (1, 2, 1, 3, 5, 4), "five keys"),
    Shape("ragged", (2, 2, 1, 3, 4, 4), "four keys, and one", lengths=(4, 1)),
)


def test_cases_are_made_once_and_again_when_the_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench_grid.SUITES, "grid", SMALL)
    said: list[str] = []
    first = load_bench_suite("grid", said.append, tmp_path / "a")
    assert [case.id for case in first.suite.cases] == ["bench/grid/whole", "bench/grid/ragged"]
    assert len(said) == 2
    assert load_bench_suite("grid", said.append, tmp_path / "a").suite == first.suite
    assert len(said) == 2
    changed = tmp_path / "source.py"
    changed.write_text("other")
    monkeypatch.setitem(bench_suites.SOURCES, "grid", (str(changed),))
    load_bench_suite("grid", said.append, tmp_path / "a")
    assert len(said) == 4


def test_what_a_length_hides_is_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench_grid.SUITES, "grid", SMALL)
    whole, ragged = load_bench_suite("grid", lambda _: None, tmp_path / "a").suite.cases
    assert whole.flops == 2 * 2 * 3 * 5 * (4 + 4)
    assert ragged.flops == 2 * 2 * 3 * (4 + 1) * (4 + 4)


@pytest.mark.parametrize("suite", ["grid", "scaling"])
def test_the_shapes_are_what_they_say(suite: str) -> None:
    shapes = bench_grid.SUITES[suite]
    assert len({shape.name for shape in shapes}) == len(shapes)
    for shape in shapes:
        B, Hq, Hkv, *_ = shape.sizes
        assert Hq % Hkv == 0
        assert not shape.lengths or len(shape.lengths) == B
    small = next(
        draft
        for shape, draft in zip(shapes, bench_grid.drafts(suite), strict=True)
        if math.prod(shape.sizes[3:5]) < 2000
    )
    inputs, expected = realise(small, "f32")
    assert expected is not None
    assert np.isfinite(expected["output"]).all()
    assert cost(small.op, small.config, inputs, expected)[0] > 0


def test_what_would_take_too_long_is_not_even_tried(tmp_path: Path) -> None:
    big = msgspec.structs.replace(case("bench/x"), flags=["Bench"], flops=10**12)
    suite = make_suite(tmp_path, big)
    rates = Rates()
    with Session(fake_port(tmp_path, RIGHT + "for request in requests(): os._exit(1)\n")) as session:
        session.start()
        (question,) = list_cells(session, suite, big)
        assert rates.predict("fake", question) == 0
        timed = Sample("bench/y", "fake", "naive", 0, 0, False, 1, [1e6], 1.0, 1.0)
        rates.learn([timed], "softmax", 10**4)
        assert rates.predict("fake", question) == 0  # a millisecond is too short to tell
        rates.learn([msgspec.structs.replace(timed, samples_ns=[1e8])], "softmax", 10**7)
        rates.learn(
            [msgspec.structs.replace(timed, samples_ns=[1e8])], "softmax", 10**8
        )  # the best: 1 GFLOP/s
        assert rates.predict("fake", question) == pytest.approx(1000)
        asker = Asker(session, tmp_path)
        entrant = check_cell(session, question, asker, QUICK, 1.0, rates.predict("fake", question))
        assert (entrant.cell.outcome, entrant.rounds) == ("pass", 0)
        assert entrant.cell.note.startswith("not timed: an evaluation would take 1000.0 s")


def test_batch_threads_and_memory_have_curves_of_their_own(tmp_path: Path) -> None:
    times = {
        **{(f"scaling/batch/{n}", "rust", "threads"): (1e6 * n,) for n in (1, 2, 4)},
        ("scaling/prefill/2048", "rust", "threads"): (8e6,),
        ("scaling/prefill/2048", "rust", "naive"): (9e9,),
    }
    twice = {("scaling/prefill/2048", "rust", "threads"): (4e6,)}
    found = report(times, twice)
    memory = [Memory("rust", "simd", n, 32 * n * n) for n in (4096, 16384)]
    memory.append(Memory("rust", "blocked", 4096, 0))
    curves = {(c.what, c.variant): c for c in find_curves(msgspec.structs.replace(found, memory=memory))}
    assert curves["batch", "threads"].exponent == pytest.approx(1)
    assert curves["threads", "threads"].times == {1: 8e6, 2: 4e6}
    assert curves["threads", "threads"].exponent == pytest.approx(-1)
    assert ("threads", "naive") not in curves
    assert curves["memory", "simd"].exponent == pytest.approx(2)
    assert ("memory", "blocked") not in curves  # which used what was there
    out = io.StringIO()
    show_scaling(msgspec.structs.replace(found, memory=memory), Console(file=out, width=200))
    for part in ("B^1.00", "n^-1.00", "512 MiB", "8192 MiB"):
        assert part in out.getvalue()


def test_memory_without_the_suite_is_no_curve() -> None:
    assert find_curves(report(memory=1)) == []


@pytest.mark.skipif(not can_measure(), reason="only Linux tells")
def test_memory_is_measured_of_rungs_without_a_table_that_are_fast_enough(tmp_path: Path) -> None:
    script = tmp_path / "fake.py"
    text = PORT.replace('"naive", "flash"', '"naive", "flash", "simd", "bad"')
    bad = '        assert request["variant"] != "bad"\n'
    script.write_text(text.replace("        save_file", f"{bad}        save_file"))
    port = Port(name="fake", language="Python", kind="port", command=[sys.executable, str(script)])
    rates = Rates({("sdpa", "fake", variant): 1.0 for variant in ("naive", "simd", "bad")})
    problems: list[str] = []
    with Session(port) as session:
        session.start()
        assert measure_memory([session], (), rates, problems) == []
        found = measure_memory([session], (1024,), rates, problems)
    # naive holds a table, of flash no rate is known, and bad fails.
    assert [(one.variant, one.length) for one in found] == [("simd", 1024)]
    assert found[0].bytes > 0
    assert len(problems) == 1
    assert problems[0].startswith("memory: fake bad, T = 1024")
