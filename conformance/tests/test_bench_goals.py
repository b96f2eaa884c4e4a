"""The goals, computed from a made-up report whose ratios a person can check."""

from pathlib import Path
from typing import Any

import pytest
from synthetic import MACHINE

from conformance.bench_command import read_threads, show_goals
from conformance.bench_file import (
    BenchFooter,
    BenchHeader,
    BenchReport,
    Cell,
    Memory,
    Sample,
    build_report,
    write_line,
)
from conformance.bench_goals import (
    GOALS,
    MEMORY_LENGTH,
    Goal,
    Share,
    long_rows,
    reach,
    share_of,
    thread_gains,
)
from conformance.bench_goals_text import (
    BEGIN,
    END,
    goals_in_short,
    goals_table,
    grid_table,
    render,
    write_parts,
)
from conformance.bench_stats import geometric_mean
from conformance.cases.bench_caches import drafts as cache_drafts
from conformance.cases.bench_grid import GRID
from conformance.errors import UsageError
from conformance.fixtures import load_suite
from conformance.limits import Limits
from conformance.report import PortRecord
from conformance.session import StartAnswer

LIMITS = Limits("avx512f", 100.0, 10.0, 20.0, 10.0, 512, 40.0)
FLOPS, BYTES = 10**9, 10**7
# By case, port and variant: the nanoseconds of a call in each of three rounds.
TIMES: dict[tuple[str, str, str], tuple[float, ...]] = {
    ("grid/a", "python", "naive"): (8e7, 8e7, 8e7),
    ("grid/a", "rust", "simd"): (1e7, 1e7, 2e7),
    ("grid/a", "torch", "fused"): (3e7, 4e7, 4e7),
    ("grid/a", "onnxruntime", "fused"): (2e7, 9e7, 8e7),
    ("grid/b", "python", "naive"): (8e7, 8e7, 8e7),
    ("grid/b", "rust", "simd"): (2e7, 2e7, 2e7),
    ("grid/b", "torch", "fused"): (1.8e7, 1.8e7, 1.8e7),
}


def report(
    times: dict[tuple[str, str, str], tuple[float, ...]] = TIMES,
    twice: dict[tuple[str, str, str], tuple[float, ...]] | None = None,
    memory: int = 0,
) -> BenchReport:
    """twice: the same with two threads."""
    return build_report(*lines_of(times, twice or {}, memory))


def lines_of(
    times: dict[tuple[str, str, str], tuple[float, ...]],
    twice: dict[tuple[str, str, str], tuple[float, ...]],
    memory: int = 0,
) -> tuple[BenchHeader, list[Any], BenchFooter]:
    names = dict.fromkeys(port for _, port, _ in times)
    ports = [
        PortRecord(
            port,
            "X",
            "peer" if port == "onnxruntime" else "port",
            start=StartAnswer(1, port, {}, "X", "0.1", f"{port} runtime"),
        )
        for port in names
    ]
    header = BenchHeader(2, "", "2026-01-02T", "abc", MACHINE, "full", 3, 1, "python", ports, {}, "", [2])
    lines: list[Any] = [LIMITS]
    for threads, some in ((1, times), (2, twice)):
        for (case, port, variant), rounds in some.items():
            name, op = f"bench/{case}", "kv_cache" if case.startswith(("caches", "long")) else "sdpa"
            first = variant == "naive"
            lines.append(
                Cell(name, op, port, variant, first, "pass", flops=FLOPS, bytes=BYTES, threads=threads)
            )
            for n, ns in enumerate(rounds):
                sample = Sample(name, port, variant, n, 0, False, 1, [ns], 1.0, 1.0, threads=threads)
                lines.append(sample)
    if memory:
        lines.append(Memory("rust", "simd", MEMORY_LENGTH, memory))
    return header, lines, BenchFooter(len(times), 3 * len(times), True, [], 60.0)


def test_a_ratio_is_to_the_best_peer_of_the_same_round() -> None:
    goal = Goal("x", ("rust:simd",), ("torch", "onnxruntime"), ("grid/a", "grid/b"), 1.2, 0.8)
    (found,) = reach(report(), [goal])
    a, b = found.cells
    # Rounds: 2 (onnxruntime), 4 (torch) and 2 (torch); where a peer has no cell the other one counts.
    assert (a.ratio, a.low, a.high) == (2, 2, 4)
    assert a.peer == "onnxruntime fused"  # which took the least time of all
    assert b.ratio == pytest.approx(0.9)
    assert found.mean == pytest.approx((2 * 0.9) ** 0.5)
    assert found.lowest == b
    assert found.lacking == []


def test_what_is_lacking_is_named() -> None:
    goal = Goal("x", ("rust:simd",), ("torch",), ("grid/a", "grid/b", "grid/none"), 2.0, 1.0)
    (found,) = reach(report(), [goal])
    assert found.missing == ["none"]
    assert found.lacking == ["1 of 3 cells not timed", "mean", "lowest cell"]


def test_a_goal_without_any_cell_has_reached_nothing() -> None:
    (found,) = reach(report(), [Goal("x", ("julia:simd",), ("torch",), ("grid/a",), 1.0)])
    assert (found.cells, found.mean, found.lowest) == ([], 0, None)
    assert found.lacking == ["1 of 1 cells not timed"]
    assert all(each.lacking for each in reach(report()))


def test_every_rung_but_the_first_is_meant_by_a_star() -> None:
    times = {
        ("grid/a", "python", "naive"): (8e7,),
        ("grid/a", "python", "blocked"): (2e7,),
        ("grid/a", "python", "flash"): (4e7,),
    }
    (found,) = reach(report(times), [Goal("x", ("python:*",), ("python:naive",), ("grid/a",), 2.0)])
    assert (found.cells[0].ratio, found.cells[0].rung) == (4, "python blocked")


def test_shares_are_of_the_limits_of_the_same_report() -> None:
    row = report().find("bench/grid/a", "rust", "simd")
    assert row is not None
    assert share_of(report(), row, "multiply-adds") == pytest.approx(1.0)  # 1e9 operations in 10 ms
    assert share_of(report(), row, "four streams") == pytest.approx(1 / 20)
    assert share_of(report(), row, "WASM multiply-adds") == pytest.approx(100 / 40)
    goal = Goal(
        "x", ("rust:simd",), ("torch",), ("grid/a",), 1.0, 0.0, Share("four streams", 0.7, ("grid/a",))
    )
    assert reach(report(), [goal])[0].lacking == ["share"]
    unknown = Goal("x", ("rust:simd",), ("torch",), ("grid/a",), 1.0, 0.0, Share("four streams", 0.7, ("c",)))
    assert reach(report(), [unknown])[0].lacking == ["share unknown"]


def test_two_threads_stand_beside_one_and_apart_from_the_others() -> None:
    one = {
        ("grid/a", "python", "naive"): (1e8, 1e8, 1e8),
        ("grid/a", "rust", "threads"): (4e7, 4e7, 6e7),
        ("grid/a", "torch", "fused"): (1e8, 1e8, 1e8),
    }
    two = {
        ("grid/a", "rust", "threads"): (2e7, 2.5e7, 3e7),
        ("grid/a", "torch", "fused"): (8e7, 8e7, 8e7),
    }
    found = report(one, two)
    assert [row.threads for row in found.rows] == [0, 0, 0]
    assert [row.threads for row in found.threaded] == [2, 2]
    row = found.find("bench/grid/a", "rust", "threads")
    assert row is not None
    assert row.min_ns == 4e7
    assert thread_gains(found) == {
        ("rust", "threads"): {"grid/a": 2.0},
        ("torch", "fused"): {"grid/a": 1.25},
    }
    assert thread_gains(found, 4) == {}


def test_a_goal_asks_only_for_cases_that_there_are() -> None:
    known = {case.id for case in load_suite("bench").suite.cases}
    known |= {f"bench/grid/{shape.name}" for shape in GRID}
    asked = {f"bench/{case}" for goal in GOALS for case in goal.cases}
    asked |= {f"bench/{case}" for goal in GOALS if goal.share for case in goal.share.cases}
    assert asked <= known


def test_cache_cases_end_with_what_they_want() -> None:
    for draft in cache_drafts():
        steps = draft.config["steps"]
        assert steps[-1]["out"] == draft.want[0]
        assert len(draft.steps or ()) == len(steps)


def test_memory_is_a_share_of_the_scores_that_are_not_held() -> None:
    scores, tensors = 4 * MEMORY_LENGTH**2, 32 * 2**20  # q, k, v and the output are held in any case
    assert "0.80 % (< 1 %) | reached |" in goals_table(report(memory=tensors + scores // 125))
    assert "2.00 % (< 1 %) | share |" in goals_table(report(memory=tensors + scores // 50))
    assert "0.00 % (< 1 %) | reached |" in goals_table(report(memory=tensors - tensors // 16))
    assert "| - (< 1 %) | not measured |" in goals_table(report(memory=tensors - tensors // 16 - 1))
    assert "| reached |" not in goals_in_short(report(memory=tensors - tensors // 16 - 1))
    assert goals_in_short(report(memory=tensors)).count("| reached |") == 1


LONG = {
    ("long-1024/f32", "rust", "simd"): (1e6, 1e6),
    ("long-1024/int8", "rust", "simd"): (5e5, 5e5),
    ("long-8192/f32", "rust", "simd"): (8e6, 8e6, 9e6),
    ("long-8192/int8", "rust", "simd"): (2e6, 4e6, 3e6),
    ("long-8192/int4", "rust", "simd"): (2e6, 2e6),
    ("long-8192/bf16", "rust", "simd"): (4e6,),
}


def test_a_narrow_cache_is_compared_with_f32_in_the_same_round() -> None:
    rows = {(row.past, row.kind): row.ratios for row in long_rows(report(LONG))["rust", "simd"]}
    assert rows[8192, "int8"] == [4, 2, 3]
    assert rows[1024, "int8"] == [2, 2]
    text = goals_table(report(LONG))
    assert "| Rust `simd`, decode on int8, 8192 tokens |" in text
    assert "| 3.00 (3) | 2.00 in the lowest round |  | reached |" in text
    assert "| 4.00 (4.5) | 4.00 in the lowest round |  | mean |" in text
    assert "decode on bf16" not in text  # has no goal
    assert "decode on int8, 1024" not in text
    table = render(report(LONG))["long pasts"].splitlines()
    assert table[0] == "| | rust `simd`, 1024 tokens | rust `simd`, 8192 tokens |"
    assert table[2] == "| f32 | 1000 µs, 10.0 GB/s (1.00) | 8000 µs, 1.25 GB/s (1.00) |"
    assert table[-1] == "| bf16 | - | 4000 µs, 2.50 GB/s (2.00) |"


def test_without_a_long_past_the_goal_says_so() -> None:
    assert "| decode on caches of codes | f32 | 0 | - | - |  | not in the report |" in goals_table(report())


def test_the_short_grid_leaves_out_peers_and_says_no_other_is_the_fastest() -> None:
    times = {
        ("sdpa/small", "python", "naive"): (8e6,),
        ("sdpa/small", "rust", "simd"): (4e6,),
        ("sdpa/small", "rust", "threads"): (3e6,),  # with one thread
        ("sdpa/small", "onnxruntime", "cpu"): (2e6,),
    }
    assert grid_table(report(times)).endswith("| small, µs | 8000 | 4000 | **2000** |")
    assert grid_table(report(times), ()).endswith("| small, µs | 8000 | 4000 |")


def test_the_short_table_has_every_goal_once() -> None:
    rows = goals_table(report(memory=1)).splitlines()[2:]
    short = goals_in_short(report(memory=1)).splitlines()[2:]
    assert len(short) == len(rows)
    assert [line.rpartition(" | ")[2] for line in short] == [line.rpartition(" | ")[2] for line in rows]


def test_the_table_says_what_was_reached_and_what_was_wanted() -> None:
    times = {
        ("grid/decode-4096", "python", "naive"): (1e7, 1e7),
        ("grid/decode-4096", "julia", "simd"): (1e6, 1e6),
        ("grid/decode-4096", "torch", "fused"): (3e6, 3e6),
    }
    text = goals_table(report(times))
    (line,) = [line for line in text.splitlines() if line.startswith("| Julia `simd`, decode |")]
    assert "| 1 | 3.00 (1.5) | 3.00 decode-4096, torch fused (1) |" in line
    assert line.endswith("| 3 of 4 cells not timed |")
    grid = render(report(times))["grid"]
    assert "| decode-4096, GB/s | 1.00 (5 %) | **10.0** (50 %) | 3.33 (17 %) |" in grid


def test_every_table_is_one() -> None:
    for part, text in render(report(memory=1)).items():
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1, part


def test_documents_take_in_what_they_have_markers_for(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin = BEGIN.format(part="goals")
    page.write_text(f"before\n{begin}\nold\n{END}\nafter\n")
    assert write_parts(report(), [page]) == ["page.md: goals"]
    once = page.read_text()
    assert once.startswith(f"before\n{begin}\n| port, rung |")
    assert once.endswith(f"|\n{END}\nafter\n")
    assert "old" not in once
    write_parts(report(), [page])
    assert page.read_text() == once


@pytest.mark.parametrize(
    "text", ["{begin}\nno end", "{begin}\n{end}\n{begin}\n{end}", "{begin}\n{other}\n{end}"]
)
def test_bad_markers_change_no_document(tmp_path: Path, text: str) -> None:
    begin, other = BEGIN.format(part="goals"), BEGIN.format(part="run")
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text(f"{begin}\n{END}\n")
    bad.write_text(text.format(begin=begin, end=END, other=other))
    with pytest.raises(UsageError, match="expected one"):
        write_parts(report(), [good, bad])
    assert good.read_text() == f"{begin}\n{END}\n"


def test_the_command_reads_one_report_and_times_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, lines, footer = lines_of(TIMES, {})
    with (tmp_path / "bench.jsonl").open("wb") as stream:
        for line in (header, *lines, footer):
            write_line(stream, line)
    show_goals(str(tmp_path / "bench.jsonl"), write=False)
    out = capsys.readouterr().out
    assert all(f"### {part}\n" in out for part in render(report()))
    assert "100 GFLOP/s of multiply-adds" in out
    assert "python runtime" in out
    with pytest.raises(UsageError, match="of which report"):
        show_goals("", write=True)


def test_numbers_of_threads_are_read_the_fewest_first() -> None:
    assert read_threads("2,1") == [1, 2]
    assert read_threads("3") == [3]
    for bad in ("", "1,x", "0", "-1,2", "1.5"):
        with pytest.raises(UsageError, match="--threads"):
            read_threads(bad)


def test_the_mean_is_geometric() -> None:
    assert geometric_mean([]) == 0
    assert geometric_mean([1, 4]) == pytest.approx(2)
