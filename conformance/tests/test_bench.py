"""Benchmarks: the order of the rounds, the numbers made of raw samples, and a small run from end to end."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes import fake_port
from rich.console import Console
from test_run import RIGHT, case, make_suite

from conformance.bench import Options, run_bench, with_reference
from conformance.bench_answers import BadTimes, read_samples
from conformance.bench_file import BenchReport, Cell, Sample, read_bench
from conformance.bench_plan import LEAST_PART_S, QUICK
from conformance.bench_rounds import LEAST_THREADED_FLOPS, Entrant, order_round, plan_rounds
from conformance.bench_stats import find_warnings, noise_floor, round_speeds, summarise
from conformance.bench_text import show_bench
from conformance.case import Suite, encode_suite
from conformance.cases.draft import Draft
from conformance.errors import UsageError
from conformance.fixtures import LoadedSuite, describe, load_folder
from conformance.flags import NOTES
from conformance.ports import Port
from conformance.realise import realise, write_case
from conformance.report import InvalidReport
from conformance.session import Timeouts

FAST = replace(QUICK, warm_up_s=0.0, seconds=0.2, min_sample_s=1e-4, check_timeout_s=5)


def entrant(port: str, variant: str = "naive", first: bool = True) -> Entrant:
    cell = Cell("c", "softmax", port, variant, first, "pass")
    return Entrant(SimpleNamespace(), SimpleNamespace(), cell, rounds=3)  # type: ignore[arg-type]


def sample(port: str, round_: int, *times: float, again: bool = False, cpu: float = 1.0) -> Sample:
    return Sample("c", port, "naive", round_, 0, again, 1, list(times), 1.0, cpu)


def test_rounds_are_rotated_and_the_reference_is_measured_twice() -> None:
    cells = [entrant("a"), entrant("ref"), entrant("ref", "fast", False), entrant("b")]
    rounds = [order_round(cells, number, "ref") for number in range(4)]
    orders = [[f"{e.name}{'*' if again else ''}" for e, again in order] for order in rounds]
    assert orders[0] == ["a:naive", "ref:naive", "ref:fast", "b:naive", "ref:naive*"]
    assert orders[1] == ["ref:naive", "ref:fast", "b:naive", "a:naive", "ref:naive*"]
    assert orders[2] == ["ref:naive*", "ref:fast", "b:naive", "a:naive", "ref:naive"]
    assert len({next(e.name for e, again in order if not again) for order in rounds}) == 4
    assert order_round([], 0, "ref") == []


def test_a_cell_is_compared_with_the_reference_of_its_own_round() -> None:
    reference = [sample("ref", 0, 100), sample("ref", 0, 100, again=True), sample("ref", 1, 200)]
    own = [sample("x", 0, 50, 50), sample("x", 1, 100), sample("x", 2, 1)]
    assert round_speeds(own, reference) == [2, 2]


def test_the_noise_floor_is_how_far_the_reference_is_from_itself() -> None:
    assert noise_floor([]) == 0
    assert noise_floor([sample("ref", 0, 100), sample("ref", 0, 110, again=True)]) == pytest.approx(0.1)
    pairs = [(100, 100), (100, 101), (100, 102), (100, 300)]
    samples = [
        s for r, (a, b) in enumerate(pairs) for s in (sample("ref", r, a), sample("ref", r, b, again=True))
    ]
    assert noise_floor(samples) == pytest.approx(0.02)  # one bad round of four does not set it


def test_rows_are_made_of_raw_samples() -> None:
    cells = [
        Cell("c", "softmax", "ref", "naive", True, "pass", first_ns=900),
        Cell("c", "softmax", "x", "naive", True, "pass", flops=100, bytes=50),
        Cell("c", "softmax", "y", "naive", True, "fail", message="wrong"),
    ]
    samples = [sample("ref", 0, 100, 120), sample("ref", 0, 100, 120, again=True), sample("x", 0, 50, 55, 60)]
    rows, noise = summarise(cells, samples, "ref")
    assert noise == {"c": 0.0}
    assert (rows[0].speed, rows[0].first_ns) == (1, 900)
    assert (rows[1].min_ns, rows[1].median_ns, rows[1].speed, rows[1].rounds) == (50, 55, 2, 1)
    assert (rows[1].gflops, rows[1].gigabytes) == (2, 1)
    assert (rows[2].speed, rows[2].rounds, rows[2].gflops) == (0, 0, 0)


def test_more_threads_than_granted_and_a_busy_machine_are_told() -> None:
    cells = [Cell("c", "softmax", "x", "naive", True, "pass")]
    rows, _ = summarise(cells, [sample("x", 0, 1, cpu=1.9)], "ref")
    assert "x:naive c: used 1.9 processors, 1 granted" in find_warnings(rows, 1)
    assert not any("granted" in warning for warning in find_warnings(rows, 2))
    rows, _ = summarise(cells, [sample("x", 0, 1, cpu=0.5)], "ref")
    assert "the machine was busy: the ports got 50% of a processor" in find_warnings(rows, 1)[0]


def test_rounds_whose_wall_and_processor_time_differ_are_told() -> None:
    cells = [Cell("c", "softmax", "x", "naive", True, "pass")]
    calm = [sample("x", n, 1e9, cpu=1.0) for n in range(3)]
    assert find_warnings(summarise(cells, calm, "ref")[0], 1) == []
    dropped = replace_sample(sample("x", 0, 7.0, cpu=0.9), dropped=True)
    rows, _ = summarise(cells, [*calm, dropped], "ref")
    assert (rows[0].repeated, rows[0].disturbed, rows[0].min_ns) == (
        1,
        0,
        1e9,
    )  # what was dropped does not count
    assert find_warnings(rows, 1) == [
        "wall and processor time were more than 5% apart: 1 requests were made again, 0 of 3 rounds stayed so"
    ]
    rows, _ = summarise(cells, [*calm[:2], sample("x", 2, 1e9, cpu=0.94)], "ref")
    assert (rows[0].repeated, rows[0].disturbed) == (0, 1)
    assert find_warnings(rows, 1)[0].endswith("1 of 3 rounds stayed so: x:naive c 1/3")


def test_the_clock_of_the_port_itself_tells_more_than_the_one_outside() -> None:
    outside = sample("x", 0, 100.0, cpu=0.5)
    assert outside.apart == 0.5
    inside = replace_sample(outside, evals=10, samples_ns=[100.0, 100.0], cpu_ns=1900.0)
    assert inside.apart == pytest.approx(0.05)


def replace_sample(found: Sample, **changes: Any) -> Sample:
    return msgspec.structs.replace(found, **changes)


@pytest.mark.parametrize(
    ("seconds", "rounds", "samples", "note"),
    [
        (1e-6, 3, 5, ""),
        (0.05, 3, 4, ""),
        (0.2, 1, 1, "timed in 1 of 3 rounds"),
        (1.5, 1, 1, "timed in 1 of 3 rounds: one evaluation takes 1.50 s"),
        (5.0, 0, None, "not timed: an evaluation takes 5.0 s, the limit is 2 s (quick)"),
    ],
)
def test_a_slow_cell_takes_part_less_and_says_so(
    seconds: float, rounds: int, samples: int | None, note: str
) -> None:
    plan = replace(QUICK, rounds=3, samples=5, longest_s=2.0)
    found = plan_rounds(replace_rounds(entrant("x")), seconds, plan, 0.95)
    assert (found.rounds, found.request.get("samples")) == (rounds, samples)
    assert found.cell.note.startswith(note)
    assert bool(found.cell.note) == bool(note)


def replace_rounds(found: Entrant) -> Entrant:
    found.rounds = 0
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples_ns": []}, "samples_ns: expected a list of positive numbers, got []"),
        ({"samples_ns": [1, 0]}, "samples_ns"),
        ({"samples_ns": None}, "samples_ns"),
        ({"evals": 0}, "evals: expected a positive number"),
        ({"first_ns": "1"}, "first_ns: expected a positive number"),
        ({"cpu_ns": -1}, "cpu_ns: expected a number that is not negative"),
        ({"cpu_ns": "1"}, "cpu_ns"),
        ({"status": "error", "message": "oh"}, "answered error: oh"),
    ],
)
def test_unusable_times_are_refused(change: dict[str, Any], message: str) -> None:
    good = {"status": "ok", "first_ns": 10, "evals": 2, "samples_ns": [1.5, 2]}
    assert read_samples(good) == [1.5, 2.0]
    with pytest.raises(BadTimes) as caught:
        read_samples(good | change)
    assert message in str(caught.value)


MS = 1_000_000

# A port that takes its time, and says so.
TIMED = (
    RIGHT
    + """
def bench(request):
    if "outputs" in request:
        answer(request)
    time.sleep(NS * 1e-9 * request["samples"])
    return {**ok(request), "first_ns": NS * 3, "evals": 1, "samples_ns": [NS] * request["samples"]}

for request in requests():
    say(bench(request))
"""
)


def bench_port(folder: Path, name: str, ns: int, script: str = TIMED) -> Port:
    return fake_port(folder, f"NS = {ns}\n" + script, name)


def bench_suite(folder: Path) -> LoadedSuite:
    timed = msgspec.structs.replace(case("bench/x"), flags=["Bench"], flops=8_000_000)
    return make_suite(folder, timed, case("plain"))


def run(folder: Path, *ports: Port) -> BenchReport:
    options = Options(file=folder / "bench.jsonl", timeouts=Timeouts(start=20), limits=False)
    return run_bench(ports, [bench_suite(folder)], FAST, options, Console(file=io.StringIO()))


def test_a_benchmark_from_end_to_end(tmp_path: Path) -> None:
    slow, fast = bench_port(tmp_path, "python", 4_000_000), bench_port(tmp_path, "mine", 1_000_000)
    report = run(tmp_path, slow, fast)
    assert report.footer.ok
    row = report.find("bench/x", "mine")
    assert row is not None
    assert (row.min_ns, row.median_ns, row.first_ns, row.speed, row.rounds) == (1e6, 1e6, 3e6, 4, 3)
    assert row.gflops == 8
    assert report.noise == {"bench/x": 0}
    assert report.header.reference == "python"
    assert read_bench(tmp_path / "bench.jsonl") == report
    out = io.StringIO()
    show_bench(report, Console(file=out, width=200))
    (line,) = [line for line in out.getvalue().splitlines() if "mine:naive  " in line]
    assert line.split()[:7] == ["mine:naive", "1.00", "ms", "1.00", "ms", "3.00", "ms"]
    assert line.split()[7:12] == ["8.00", "4.00×", "4.00", "to", "4.00"]  # no limits, so no share of them
    assert line.endswith("3 of 3 rounds disturbed")  # it sleeps


def test_a_wrong_result_is_not_timed_and_the_benchmark_fails(tmp_path: Path) -> None:
    wrong = TIMED.replace("        answer(request)", '        KNOWN["output"][0, 0] = 7; answer(request)')
    report = run(tmp_path, bench_port(tmp_path, "python", MS), bench_port(tmp_path, "mine", MS, wrong))
    row = report.find("bench/x", "mine")
    assert row is not None
    assert (row.outcome, row.rounds, row.speed) == ("fail", 0, 0)
    assert not report.footer.ok
    assert "mine:naive bench/x: fail: output[0, 0]" in report.footer.problems[0]


def test_a_port_that_dies_or_does_not_start_is_named(tmp_path: Path) -> None:
    dies = bench_port(tmp_path, "mine", 1, "for request in requests(): os._exit(2)")
    never = bench_port(tmp_path, "never", 1, "os._exit(3)")
    report = run(tmp_path, bench_port(tmp_path, "python", MS), dies, never)
    assert not report.footer.ok
    assert any("never: could not be started" in problem for problem in report.footer.problems)
    row = report.find("bench/x", "mine")
    assert row is not None
    assert row.outcome == "crash"


def test_a_benchmark_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    run(tmp_path, bench_port(tmp_path, "python", MS))
    path = tmp_path / "bench.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join(lines[:-1]))
    with pytest.raises(InvalidReport, match="cut short"):
        read_bench(path)
    path.write_bytes(b"\n".join([lines[0], lines[-1]]))
    with pytest.raises(InvalidReport, match="nothing was timed"):
        read_bench(path)
    with pytest.raises(InvalidReport, match="`conformance bench` makes one"):
        read_bench(tmp_path / "none")


def test_without_a_case_to_time_there_is_no_benchmark(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no case is left to time"):
        run_bench([], [make_suite(tmp_path, case("a"))], FAST, Options(file=tmp_path / "b"), Console())


def test_the_reference_is_timed_even_when_it_was_not_chosen() -> None:
    ports = [Port(name, "X", "port", ["x"]) for name in ("python", "rust")]
    assert [p.name for p in with_reference(ports[1:], ports)] == ["python", "rust"]
    assert [p.name for p in with_reference(ports, ports)] == ["python", "rust"]


def test_the_numpy_port_answers_bench_as_the_driver_expects(tmp_path: Path) -> None:
    port = Port("python", "Python", "port", [sys.executable, "-m", "rosetta_port.numpy_port"])
    report = run(tmp_path, port)
    assert report.footer.ok, report.footer.problems
    (row,) = report.rows
    assert 0 < row.min_ns <= row.median_ns
    assert row.first_ns > 0
    assert 0 < row.share < 1


def test_two_threads_are_a_process_of_their_own_beside_the_first(tmp_path: Path) -> None:
    claims = {"sdpa": {"variants": ["naive", "threads"], "dtypes": ["f32"], "features": []}}
    script = tmp_path / "threaded.py"
    script.write_text(
        f"""
import json, sys
import numpy as np
from safetensors.numpy import load_file, save_file
for line in sys.stdin:
    request = json.loads(line)
    if request["cmd"] == "start":
        threads = min(request["threads"], 2)
        answer = {{"status": "ok", "protocol": 1, "name": "x", "threads": threads, "ops": {claims!r}}}
    elif request["cmd"] == "bench":
        if "outputs" in request:
            x = load_file(request["inputs"])
            s = x["q"] @ x["k"].swapaxes(-1, -2) / 2
            w = np.exp(s - s.max(-1, keepdims=True))
            save_file({{"output": w / w.sum(-1, keepdims=True) @ x["v"]}}, request["outputs"])
        ns = 4e5 / threads if request["variant"] == "threads" else 8e5
        import time; time.sleep(2e-9 * ns * request["samples"])
        answer = {{"seq": request["seq"], "status": "ok", "first_ns": ns, "evals": 1}}
        answer["samples_ns"] = [ns] * request["samples"]
    else:
        answer = {{"status": "ok"}}
    print(json.dumps(answer), flush=True)
    if request["cmd"] == "stop":
        break
"""
    )
    names = ("python", "other")
    ports = [Port(name, "X", "port", [sys.executable, str(script)]) for name in names]
    suite = threaded_suite(tmp_path)
    options = Options(
        file=tmp_path / "bench.jsonl", more_threads=(2, 3), timeouts=Timeouts(start=20), limits=False
    )
    report = run_bench(ports, [suite], FAST, options, Console(file=io.StringIO()))
    assert report.footer.ok, report.footer.problems
    assert [(row.port, row.variant, row.min_ns) for row in report.rows] == [
        ("python", "naive", 8e5),
        ("python", "threads", 4e5),
        ("other", "naive", 8e5),
        ("other", "threads", 4e5),
    ]
    # Of the rungs only that which is made for it, and not with three, which the ports do not have.
    assert [(row.port, row.variant, row.threads, row.min_ns) for row in report.threaded] == [
        ("python", "threads", 2, 2e5),
        ("other", "threads", 2, 2e5),
    ]
    assert {gain for row in report.threaded for gain in row.gains} == {2.0}
    assert read_bench(tmp_path / "bench.jsonl") == report
    out = io.StringIO()
    show_bench(report, Console(file=out, width=200))
    assert "2 threads against 1\n" in out.getvalue()
    assert "other:threads" in out.getvalue().partition("2 threads against 1")[2]


def threaded_suite(folder: Path) -> LoadedSuite:
    """One case of sdpa with D = 4, said to be large."""
    draw = np.random.default_rng(0)
    inputs = {name: draw.normal(size=(1, 1, 3, 4)) for name in ("q", "k", "v")}
    draft = Draft("bench/x", "sdpa", inputs, {}, flags=("Bench",), note="x", dtypes=("f32",))
    files = {"f32": write_case(folder / "suite", draft, "f32", *realise(draft, "f32"))}
    large = msgspec.structs.replace(describe(draft, files), flops=LEAST_THREADED_FLOPS)
    suite = Suite("bench", 1, [large], {"Bench": NOTES["Bench"]})
    (folder / "suite/manifest.json").write_bytes(encode_suite(suite))
    return load_folder(folder / "suite")


@pytest.mark.parametrize(
    ("cpu", "threads", "apart"),
    [(1.0, 0, 0.0), (0.9, 1, 0.1), (1.2, 1, 0.2), (1.2, 2, 0.0), (2.0, 2, 0.0), (2.5, 2, 0.5), (0.5, 2, 0.5)],
)
def test_several_threads_may_use_more_processor_time_than_wall_time(
    cpu: float, threads: int, apart: float
) -> None:
    assert replace_sample(sample("x", 0, 1.0, cpu=cpu), threads=threads).apart == pytest.approx(apart)


def test_cells_get_less_when_the_time_before_them_was_longer_than_thought() -> None:
    plan = replace(QUICK, seconds=10, most_per_cell_s=5, most_s=20, warm_up_s=0.1)
    assert plan.part(4) == plan.part_left(4, 4, 0.0) == 2.5
    assert plan.part_left(4, 2, 17.0) == pytest.approx(1.4)
    assert plan.part_left(4, 2, 30.0) == LEAST_PART_S
