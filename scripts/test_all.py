"""Runs every test of the project, and ends with one table: what `make test-all` does once set-up is done.

A section is one runner: the linters, a language's native suite, the harness's own suite, the conformance run.
Two run at a time, for no test measures time, and all of them run, whatever the others say. The status is 1 when
anything failed, was skipped without an entry in `conformance/known_failures/skips.toml`, or did not run; no passed
test at all counts as that.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import test_counts
from steps import LOGS, ROOT, TOOLS, VENV, VENV_PYTHON, log_path, relative, say, tail_of, tool_environment
from test_counts import Counts

PROCESSES: set[subprocess.Popen] = set()  # those of the sections that run now
SKIPS = ROOT / "conformance/known_failures/skips.toml"
PORTS = ("python", "torch", "rust", "typescript", "julia")
# Random questions, and random traces of caches; the same ones for the same sources (hypothesis also draws constants
# that it finds there), so that what fails here fails again.
FUZZED, TRACED = "2000", "1000"
CACHES = "kv_cache"
SIDE_BY_SIDE = 2
# In which order they begin: lint at once, since it fails most often, then the longest, so that both cores are busy to
# the end. Cargo has one build folder, so lint, rust and its docs would wait for each other: they are far apart.
ORDER = (
    "lint",
    "harness",
    "julia",
    "conformance",
    "rust",
    "fuzz",
    "fuzz caches",
    "tiers",
    "python",
    "fixtures",
    "rust docs",
)
# A machine tests but one of the kernels that the fast rungs choose from: the others are forced, each by a port file.
# What one needs of the processor, where it is not what every one has.
FORCED = ROOT / "conformance/ports/forced"
NEEDED = {"rust-avx2": {"avx2", "fma"}, "julia-8": {"avx2"}}
FORCED_ASKED = ["--ops", "sdpa,varlen,kv_cache", "--variant", "simd,wasm"]
# The idle threads of BLAS and OpenMP spin, and take the other section's core. A test of threads says how many it wants.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
# A section that takes longer hangs, and is ended.
SECTION_SECONDS = 1500


@dataclass(frozen=True)
class Section:
    """One runner, and how its output is counted: from the text of its log and from a report file.

    Without `count` it is a single check, of which the exit status says everything.
    """

    name: str
    command: list[str]
    count: Callable[[str, Path], Counts] | None = None
    report: Path = Path(os.devnull)
    folder: Path = ROOT


@dataclass
class Result:
    """What came of a section. `problems` empty means that it is fine."""

    name: str
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def main() -> int:
    """Runs the sections, two at a time, in an order that ends early."""
    parser = argparse.ArgumentParser(description="Runs every test and sums up.")
    parser.add_argument("--ports", default="", metavar="A,B", help="only what concerns these ports")
    parser.add_argument("--ops", default="", metavar="A,B", help="only these ops in the conformance run")
    arguments = parser.parse_args()
    ports = [name.strip() for name in arguments.ports.split(",") if name.strip()]
    allowed = read_skips(ports)
    chosen = sections(ports, arguments.ops)
    queue = sorted(chosen, key=lambda section: (*ORDER, section.name).index(section.name))
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        running = {section.name: pool.submit(run_section, section, allowed) for section in queue}
        try:
            results = [running[section.name].result() for section in chosen]
        except KeyboardInterrupt:
            stop_all(pool)
            raise SystemExit("test-all: interrupted") from None
    say_table(results)
    return 1 if any(result.problems for result in results) else 0


def sections(ports: list[str], ops: str) -> list[Section]:
    """The sections in the order of the table: the quick ones that fail most often first."""
    of_ports = ["--ports", ",".join(ports)] if ports else []
    narrow = [*of_ports, *(["--ops", ops] if ops else [])]
    conformance = str(VENV / "bin/conformance")
    report = LOGS / "test-conformance.jsonl"
    chosen = ports or PORTS
    found = [Section("lint", [str(VENV_PYTHON), "scripts/lint.py", *of_ports], test_counts.plain)]
    if "python" in chosen or "torch" in chosen:
        found.append(pytest("python", "python/tests"))
    if "rust" in chosen:
        # One command would also build every example that has no test, which lint has looked through already.
        command = ["cargo", "test", "--workspace", "--locked", "--no-fail-fast"]
        for name, which in (("rust", "--tests"), ("rust docs", "--doc")):
            found.append(Section(name, [*command, which], test_counts.cargo, folder=ROOT / "rust"))
        found.append(pytest("rust module", "rust/attention-py/tests"))
    if "typescript" in chosen:
        command = [str(TOOLS / "bin/npm"), "test"]
        found.append(Section("typescript", command, test_counts.node, folder=ROOT / "typescript"))
    if "julia" in chosen:
        command = [str(TOOLS / "bin/julia"), "--project=julia", "-O1", "julia/test/runtests.jl"]
        found.append(Section("julia", command, test_counts.plain))
    found += [
        pytest("harness", "conformance/tests"),
        Section("fixtures", [conformance, "fixtures", "--check"]),
        Section("side by side", [conformance, "sidebyside", "--check"]),
        Section(
            "conformance",
            [conformance, "run", "--strict", "--report", relative(report), *narrow],
            test_counts.conformance,
            report,
        ),
        Section("fuzz", [conformance, "fuzz", "--count", FUZZED, "--seed", "1", *narrow]),
    ]
    asked = [name.strip() for name in ops.split(",") if name.strip()]
    if not asked or "sdpa" in asked:
        found += forced_tiers(conformance, chosen)
    if not asked or CACHES in asked:
        traces = [conformance, "fuzz", "--count", TRACED, "--seed", "2", "--ops", CACHES]
        folder = ["--out", relative(LOGS / "fuzz-caches")]  # the other campaign empties its own
        found.append(Section("fuzz caches", [*traces, *folder, *of_ports]))
    return found


def forced_tiers(conformance: str, ports: Sequence[str]) -> list[Section]:
    """The conformance run of the fast rungs alone, with the kernels of other machines."""
    tiers = [
        tier
        for tier in sorted(path.stem for path in FORCED.glob("*.toml"))
        if tier.partition("-")[0] in ports and NEEDED.get(tier, set()) <= processor_flags()
    ]
    if not tiers:
        return []
    report = LOGS / "test-tiers.jsonl"
    command = [conformance, "run", "--strict", "--ports-dir", relative(FORCED)]
    command += ["--ports", ",".join(tiers), *FORCED_ASKED]
    return [Section("tiers", [*command, "--report", relative(report)], test_counts.conformance, report)]


def processor_flags() -> set[str]:
    """What the processor can do, where the system says so."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def pytest(name: str, folder: str) -> Section:
    """A section of pytest's, counted from its XML report, which also names what was skipped."""
    report = LOGS / f"test-{name.replace(' ', '-')}.xml"
    command = [str(VENV_PYTHON), "-m", "pytest", folder, "-q", f"--junitxml={relative(report)}"]
    return Section(name, command, test_counts.junit, report)


def run_section(section: Section, allowed: list[dict]) -> Result:
    """Runs a section into its log, judges it, and says so in a line or, if there are problems, in more."""
    say(f"{section.name} begins: {' '.join(relative(Path(word)) for word in section.command)}")
    log = log_path(f"test-{section.name.replace(' ', '-')}")
    if section.report.is_file():
        section.report.unlink()
    started = time.monotonic()
    result = Result(section.name, problems=run_into(log, section))
    result.seconds = time.monotonic() - started
    if section.count is None:
        result.counts = Counts(passed=0 if result.problems else 1, failed=1 if result.problems else 0)
    else:
        try:
            result.counts = section.count(log.read_text(errors="replace"), section.report)
        except (OSError, ValueError) as error:
            result.problems.append(f"its result cannot be read: {error}")
        result.problems += judge(section.name, result.counts, allowed)
    if result.problems:
        say(tail_of(log))
        say(f"  {'; '.join(result.problems)}; all of its output: {relative(log)}")
    counts = result.counts
    numbers = f"{counts.passed} passed, {counts.failed} failed, {len(counts.skipped)} skipped"
    say(f"{section.name} ends: {numbers}, {result.seconds:.1f} s: {'FAILED' if result.problems else 'ok'}")
    return result


def stop_all(pool: ThreadPoolExecutor) -> None:
    """Nothing more begins, and what runs is ended with all that it started."""
    pool.shutdown(wait=False, cancel_futures=True)
    for process in list(PROCESSES):
        os.killpg(process.pid, signal.SIGKILL)


def run_into(log: Path, section: Section) -> list[str]:
    """Runs a section's command with its output in a log. Ends it, and all it started, after too long."""
    environment = tool_environment({"COLUMNS": "100", **ONE_THREAD})
    with log.open("wb") as stream:
        try:
            process = subprocess.Popen(
                section.command,
                cwd=section.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return [f"did not start: {error}"]
        PROCESSES.add(process)
        try:
            status = process.wait(SECTION_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return [f"did not end within {SECTION_SECONDS} s"]
        finally:
            PROCESSES.discard(process)
    return [f"exit status {status}"] if status else []


def judge(name: str, counts: Counts, allowed: list[dict]) -> list[str]:
    """What is wrong with the counts of a section."""
    problems = []
    if counts.failed:
        problems.append(f"{counts.failed} failed")
    if not counts.passed:
        problems.append("no test passed")
    patterns = [entry["test"] for entry in allowed if entry["section"] == name]
    silent = [test for test in counts.skipped if not any(fnmatchcase(test, pattern) for pattern in patterns)]
    if silent:
        problems.append(f"skipped without an entry in {relative(SKIPS)}: {', '.join(silent)}")
    return problems


def read_skips(ports: list[str]) -> list[dict]:
    """The skips that are allowed. An entry with `without = PORT` holds only where that port is left out."""
    if not SKIPS.is_file():
        return []
    entries = tomllib.loads(SKIPS.read_text()).get("skip", [])
    for entry in entries:
        missing = {"section", "test", "reason"} - entry.keys()
        if missing:
            raise SystemExit(f"{relative(SKIPS)}: an entry lacks {', '.join(sorted(missing))}: {entry}")
    return [entry for entry in entries if "without" not in entry or (ports and entry["without"] not in ports)]


def say_table(results: list[Result]) -> None:
    """The summary. A section that is not fine counts at least one failure, whatever its runner said."""
    say(f"\n{'section':<14}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}  verdict")
    totals = [0, 0, 0]
    for result in results:
        counts = result.counts
        row = [counts.passed, max(counts.failed, bool(result.problems)), len(counts.skipped)]
        totals = [total + number for total, number in zip(totals, row, strict=True)]
        verdict = "; ".join(result.problems) or "ok"
        if counts.note:
            verdict += f" ({counts.note})"
        say(f"{result.name:<14}{row[0]:>8}{row[1]:>8}{row[2]:>9}{result.seconds:>9.1f}  {verdict}")
    say(f"\n{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")


if __name__ == "__main__":
    sys.exit(main())
