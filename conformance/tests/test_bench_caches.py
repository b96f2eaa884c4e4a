"""Caches as they are timed: the answer of a long past, what is asked about it, and which cells share their rounds."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from test_bench import FAST
from test_bench_goals import LONG as LONG_TIMES
from test_bench_goals import lines_of, report
from test_page import Page

from conformance.bench import Options, in_families, run_bench
from conformance.bench_check import compare_benches
from conformance.bench_file import write_line
from conformance.bench_goals import long_rows
from conformance.bench_rounds import list_cells
from conformance.bench_suites import load_bench_suite
from conformance.bench_text import show_bench
from conformance.case import Case, Files, Suite
from conformance.cases import bench_caches
from conformance.fixtures import LoadedSuite
from conformance.oracle import answer
from conformance.page import draw
from conformance.ports import Port
from conformance.session import OpClaim, StartAnswer

LONG = {draft.id: draft for draft in bench_caches.drafts() if bench_caches.is_long(draft.id)}


def test_the_short_script_that_judges_a_long_one_has_its_answer() -> None:
    draft = LONG["bench/long-1024/f32"]
    assert draft.config["untimed"] == 4
    inputs = {name: x.astype(np.float32) for name, x in draft.inputs.items()}
    whole = answer("kv_cache", draft.config, inputs, draft.steps)["out0"]
    short = answer("kv_cache", bench_caches.judged(draft.config), inputs, ("ok", "ok"))["out0"]
    assert np.abs(whole - short).max() < 1e-14


def test_what_a_call_reads_is_what_the_cache_holds() -> None:
    assert bench_caches.held_bytes("bench/long-8192/f32") == bench_caches.held_bytes("bench/long-8192/paged")
    assert bench_caches.held_bytes("bench/long-8192/f32") == 64 * 2**20
    assert bench_caches.held_bytes("bench/long-1024/f16") == 4 * 2**20
    assert bench_caches.held_bytes("bench/long-1024/int8") == 1024 * 8 * 2 * (128 + 4)
    assert bench_caches.held_bytes("bench/long-1024/int4") == 1024 * 8 * 2 * (64 + 4)


def made(id: str) -> Case:
    return Case(id, "kv_cache", {}, {"f32": Files("in", "out", {})}, features=["untimed"], want=["out0"])


def test_all_kinds_of_a_past_are_timed_in_the_same_rounds() -> None:
    names = (
        "bench/caches/f16",
        "bench/caches/int8",
        "bench/long-8/f32",
        "bench/long-8/int8",
        "bench/long-9/f32",
    )
    assert [[case.id for case in found] for found in in_families([made(name) for name in names])] == [
        ["bench/caches/f16"],
        ["bench/caches/int8"],
        ["bench/long-8/f32", "bench/long-8/int8"],
        ["bench/long-9/f32"],
    ]


def test_readable_rungs_are_not_asked_about_a_long_past() -> None:
    def asked(id: str, features: list[str]) -> list[str]:
        claim = OpClaim(["naive", "simd"], ["f32"], features)
        session: Any = SimpleNamespace(claims=StartAnswer(1, "p", {"kv_cache": claim}))
        case = made(id)
        return [q.variant for q in list_cells(session, LoadedSuite(Suite("s", 1, [case], {}), Path()), case)]

    assert asked("bench/caches/f16", ["untimed"]) == ["naive", "simd"]
    assert asked("bench/long-8/f16", ["untimed"]) == ["simd"]
    assert asked("bench/long-8/f16", []) == []  # would time what it has to write first


PORT = """
from dataclasses import replace
from rosetta_port import CacheRung, numpy_port, serve

def attend(cache, q, **options):
    steps = cache.attend_steps(q, **options)
    return steps.output, steps.lse

rung = CacheRung(lambda cache: None, attend, None)
serve(replace(numpy_port.LIBRARY, name="python", cache_variants={"quick": rung}))
"""


def test_cells_of_a_long_past_take_turns_and_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_caches, "BLOCK", 4)
    monkeypatch.setattr(bench_caches, "PASTS", (8, 12))
    monkeypatch.setattr(bench_caches, "PAGE", 4)
    monkeypatch.setattr(bench_caches, "LONG_SIZES", {"batch": 1, "Hq": 4, "Hkv": 2, "D": 8, "Dv": 8})
    drafts = [draft for draft in bench_caches.drafts() if bench_caches.is_long(draft.id)]
    monkeypatch.setattr(bench_caches, "drafts", lambda: iter(drafts))
    suite = load_bench_suite("caches", lambda _: None, tmp_path / "suite")
    assert [case.bytes for case in suite.suite.cases][:3] == [8 * 2 * 2 * 8 * 4] * 2 + [8 * 2 * 2 * 8 * 2]
    assert {case.flops for case in suite.suite.cases} == {2 * 2 * 4 * 8 * 8, 2 * 2 * 4 * 12 * 8}
    script = tmp_path / "port.py"
    script.write_text(PORT)
    port = Port(name="python", language="Python", kind="port", command=[sys.executable, str(script)])
    options = Options(file=tmp_path / "bench.jsonl", limits=False)
    plan = replace(FAST, seconds=20.0)  # enough for every round
    found = run_bench([port], [suite], plan, options, Console(file=io.StringIO()))
    assert found.footer.ok, found.footer.problems
    rows = long_rows(found)["python", "quick"]
    assert [(row.past, row.kind) for row in rows] == [
        (n, kind) for n in (8, 12) for kind in bench_caches.LONG
    ]
    assert {len(row.ratios) for row in rows} == {FAST.rounds}
    assert {row.variant for row in found.rows} == {"quick"}


def test_cells_without_a_reference_are_shown_and_not_compared(tmp_path: Path) -> None:
    times = LONG_TIMES | {("sdpa/small", port, "naive"): (1e6, 1e6) for port in ("python", "rust")}
    out = io.StringIO()
    show_bench(report(times), Console(file=out, width=200))
    assert "bench/long-1024/f32   (no reference)" in out.getvalue()
    found = compare_benches(report(times), report(times))
    assert (found.ok, found.compared) == (True, 2)
    assert "rust:simd bench/long-8192/int8 has no reference and is not compared" in found.notes
    header, lines, footer = lines_of(times, {})
    with (tmp_path / "bench.jsonl").open("wb") as stream:
        for line in (header, *lines, footer):
            write_line(stream, line)
    text = " ".join(Page(draw(tmp_path, [])).text.split())
    assert "rust simd, 8,192 tokens" in text
    assert "2.00 ms, 3.00×" in text
