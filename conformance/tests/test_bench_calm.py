"""Wall and processor time: how they are taken, and what is measured again because of them."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_bench import FAST, MS, TIMED, bench_port, bench_suite

from conformance.bench_file import Sample
from conformance.bench_plan import Budget
from conformance.bench_rounds import MOST_REPEATS, check_cell, list_cells, time_cells
from conformance.cpu_time import processor_seconds
from conformance.run import Asker
from conformance.session import Session

# A port that says how much processor time its samples took: DISTURBED requests in a row half of it, then all.
TELLS = TIMED.replace(
    "def bench(request):\n",
    """ASKED = 0

def bench(request):
    global ASKED
    timed = "outputs" not in request
    ASKED += timed
    return measured(request) | {"cpu_ns": NS * request["samples"] * (0.5 if timed and ASKED <= DISTURBED else 1)}

def measured(request):
""",
)


def time_with(folder: Path, disturbed: int, budget: Budget) -> list[Sample]:
    """The samples of a port alone whose first so many requests without a file of outputs are disturbed."""
    assert TELLS != TIMED
    port = bench_port(folder, "python", MS, f"DISTURBED = {disturbed}\n" + TELLS)
    suite = bench_suite(folder)
    with Session(port) as session:
        session.start()
        (question,) = list_cells(session, suite, suite.suite.cases[0])
        entrant = check_cell(session, question, Asker(session, folder), FAST, 0.1)
        samples = time_cells([entrant], FAST, "python", budget)
        assert entrant.cell.outcome == "pass", entrant.cell.message
        return samples


def test_a_calm_request_is_made_once(tmp_path: Path) -> None:
    samples = time_with(tmp_path, 0, Budget(10))
    assert len(samples) == 2 * FAST.rounds  # the reference twice a round
    assert not any(sample.dropped for sample in samples)
    assert all(sample.apart < 1e-6 for sample in samples)


def test_a_disturbed_request_is_made_again_and_the_calm_one_counts(tmp_path: Path) -> None:
    samples = time_with(tmp_path, 1, Budget(10))
    assert [sample.dropped for sample in samples[:3]] == [True, False, False]
    assert [sample.apart for sample in samples[:3]] == pytest.approx([0.5, 0, 0])
    assert len(samples) == 2 * FAST.rounds + 1


def test_after_a_few_times_it_is_left_as_it_is(tmp_path: Path) -> None:
    samples = time_with(tmp_path, 10**6, Budget(10))
    first = samples[: MOST_REPEATS + 1]
    assert sorted(sample.dropped for sample in first) == [False] + [True] * MOST_REPEATS
    kept = [sample for sample in samples if not sample.dropped]
    assert len(kept) == 2 * FAST.rounds


def test_the_budget_ends(tmp_path: Path) -> None:
    assert not any(sample.dropped for sample in time_with(tmp_path, 10**6, Budget(0)))


def test_the_processor_time_of_another_process() -> None:
    burn = "while time.process_time() < 0.2: pass"
    script = f"import sys, time\n{burn}\nprint('burnt', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"burnt\n"
        used = processor_seconds(process.pid)
        assert used >= 0.2
        time.sleep(0.05)
        # It only waits for input now: what it used after its line is far less than a tick of ten milliseconds.
        assert processor_seconds(process.pid) - used < 0.04
        assert process.stdin is not None
        process.stdin.close()
    assert processor_seconds(None) == 0
    assert processor_seconds(process.pid) == 0
