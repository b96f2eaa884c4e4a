"""`make compare`: everything, one after the other, and the table at the end.

Fixtures, then every port over every case and the sentences, then what a cached token takes, then a quick benchmark,
then the pages.
What goes wrong in one part does not stop the next: all is said at the end, and the exit status tells.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from . import bench as timing
from . import conform
from .bench import run_bench, with_reference
from .bench_file import BenchReport
from .bench_plan import QUICK
from .bench_text import limits_line
from .conform import run_conformance
from .errors import UsageError
from .fixtures import FixtureError, LoadedSuite, load_suites
from .kv_bytes import run_kv_bytes
from .kv_bytes_text import show_kv_bytes
from .minilm.table import similarity_table
from .page import SITE, draw_site
from .page_minilm import read_minilm
from .ports import Port
from .questions import BENCH_FLAG
from .report import Report, read_report
from .table import (
    box_of,
    machine_line,
    print_narrow,
    result_legend,
    result_tables,
    speed_legend,
    speed_tables,
)
from .tally import shorten


@dataclass
class Findings:
    """What the parts found; wrong: a line for each part that went wrong."""

    report: Report
    bench: BenchReport | None = None
    wrong: list[str] = field(default_factory=list)


def compare(
    ports: Sequence[Port],
    known: Sequence[Port],
    ops: Sequence[str] = (),
    *,
    described: dict[str, str] | None = None,
    site: Path = SITE,
    console: Console | None = None,
) -> int:
    """Runs all parts over the ports and ops; the value is the exit status. Raises UsageError.

    known: all ports there are: the benchmark takes its reference from them. described: the narrowing, for the
    reports.
    """
    console = console or Console()
    described = described or {}
    _begin(console, "fixtures")
    suites = _load(ops)
    judged = [suite for suite in suites if any(BENCH_FLAG not in case.flags for case in suite.suite.cases)]
    console.print(f"{sum(len(s.suite.cases) for s in judged)} cases in {len(judged)} suites", highlight=False)
    _begin(console, "every port over every case")
    options = conform.Options(described=described, report=site / "report.jsonl")
    footer = run_conformance(ports, judged, options, console)
    found = Findings(read_report(options.report))
    if not footer.ok:
        found.wrong.append(
            f"conformance: {len(footer.unexpected)} unexpected, {len(footer.problems)} problems"
        )
    _begin(console, "real input: the sentence encoder")
    if not ops or "mha" in ops:
        _show_sentences(site, console)
    else:
        console.print("left out: it needs mha", style="dim")
    _begin(console, "what a token takes in each kind of cache")
    if not ops or "kv_cache" in ops:
        told = run_kv_bytes(ports, site / "kv-bytes.jsonl")
        show_kv_bytes(told, console)
        found.wrong += [f"kv-bytes: {shorten(problem)}" for problem in told.footer.problems]
    else:
        console.print("left out: it needs kv_cache", style="dim")
    _begin(console, "speed")
    _time(with_reference(ports, known), suites, described, site, console, found)
    page = draw_site(site)
    _begin(console, "in short")
    show(found, console)
    for line in found.wrong:
        console.print(f"wrong: {line}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    console.print(Text.assemble("The whole story: ", (str(page), "bold")), soft_wrap=True)
    return 1 if found.wrong else 0


def show(found: Findings, console: Console) -> None:
    """The tables at the end."""
    report = found.report
    look = box_of(console)
    tables = result_tables(report.results, report.header.ports, found.bench, look)
    print_narrow(console, result_legend(found.bench), *tables)
    if found.bench is not None:
        notes = [Text(f"note: {warning}", "dim") for warning in found.bench.warnings()]
        tables = speed_tables(found.bench, look)
        limits = [] if found.bench.limits is None else [Text(limits_line(found.bench.limits), "dim")]
        print_narrow(console, speed_legend(found.bench), *tables, machine_line(found.bench), *limits, *notes)


def _begin(console: Console, what: str) -> None:
    """A heading."""
    if console.is_terminal:
        console.print(Rule(Text(what, "bold"), align="left", style="cyan"))
    else:
        console.print(f"\n{what}", highlight=False)


def _load(ops: Sequence[str]) -> list[LoadedSuite]:
    """The suites, benchmark included; makes what is missing."""
    try:
        return load_suites(list(ops) or None, include_bench=True)
    except FixtureError as error:
        raise UsageError(str(error)) from error


def _show_sentences(site: Path, console: Console) -> None:
    """The similarity table of each port, as the conformance run found it."""
    for found in read_minilm(site / "minilm.jsonl").ports:
        print_narrow(console, similarity_table(found))


def _time(
    ports: Sequence[Port],
    suites: Sequence[LoadedSuite],
    described: dict[str, str],
    site: Path,
    console: Console,
    found: Findings,
) -> None:
    """The quick benchmark."""
    options = timing.Options(described=described, file=site / "bench.jsonl")
    try:
        found.bench = run_bench(ports, suites, QUICK, options, console)
    except UsageError as error:
        found.wrong.append(f"speed: {error}")
        return
    if not found.bench.footer.ok:
        found.wrong.append(f"speed: {'; '.join(map(shorten, found.bench.footer.problems[:3]))}")
