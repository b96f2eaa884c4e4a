"""The end of `make compare` in the terminal: who is right, who is how fast. At most 100 columns wide."""

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from .bench_divisions import BEST, Division, Entry, divide
from .bench_file import BenchReport
from .outcome import Result
from .report import PortRecord
from .tally import Tally, show_ratio, show_share, tally

WIDTH = 100
PORTS_BESIDE = 5  # more do not fit the width
VARIANTS_BESIDE = 7
T = TypeVar("T")


# A rule below the head and one above the sums, in characters that every file and pager can show.
PLAIN = box.Box("    \n    \n -- \n    \n    \n -- \n    \n    \n", ascii=True)


def box_of(console: Console) -> box.Box:
    """Fine lines on a terminal, plain ones in a file."""
    return box.SIMPLE_HEAD if console.is_terminal else PLAIN


def result_tables(
    results: Sequence[Result], ports: Sequence[PortRecord], bench: BenchReport | None, look: box.Box
) -> list[Table]:
    """A row per suite, a column per port; the ports that do not fit stand in a table below."""
    suites = list(dict.fromkeys(result.suite for result in results))
    tables = []
    for some in _slices(ports, PORTS_BESIDE):
        table = _new_table(look)
        table.add_column("suite", no_wrap=True)
        for port in some:
            head = Text.assemble((port.name, "bold"), "\n", (port.language, "dim"))
            table.add_column(head, max_width=16)
        for suite in suites:
            mine = [result for result in results if result.suite == suite]
            cells = [
                _result_cell(_of_port(mine, port.name), *mean_speed(bench, port.name, suite)) for port in some
            ]
            table.add_row(Text(suite, "bold"), *cells)
        table.add_section()
        totals = [
            _result_cell(_of_port(results, port.name), *mean_speed(bench, port.name, None)) for port in some
        ]
        table.add_row(Text("all", "bold"), *totals)
        tables.append(table)
    return tables


def speed_tables(bench: BenchReport, look: box.Box) -> list[Table]:
    """A table for each division, a row per benchmark, a column per port: how many times as fast as the reference."""
    tables = []
    for division in divide(bench):
        for some in _slices(division.ports, VARIANTS_BESIDE):
            table = _new_table(look)
            table.add_column(Text(f"{division.title}\n", "bold"), no_wrap=True, max_width=28)
            for port in some:
                table.add_column(Text(port, "bold"), justify="right", max_width=10)
            table.add_column("noise", justify="right", style="dim", max_width=6)
            for case, entries in division.rows:
                best = max(entry.ratio for entry in entries if entry is not None)
                by_port = dict(zip(division.ports, entries, strict=True))
                cells = [_speed_cell(division, case, port, by_port[port], best) for port in some]
                noise = f"{100 * bench.noise.get(case, 0.0):.0f} %"
                table.add_row(case.removeprefix("bench/"), *cells, noise)
            table.add_section()
            means = [division.mean(port) for port in some]
            table.add_row("geometric mean", *[show_ratio(mean) if mean else "-" for mean in means], "")
            tables.append(table)
    return tables


def result_legend(bench: BenchReport | None) -> Text:
    """What stands in a cell of the results."""
    speed = f"; times as fast as {bench.header.reference}" if bench else ""
    return Text(f"passed / failed / unsupported; largest share of the error bound{speed}", "dim")


def speed_legend(bench: BenchReport) -> Text:
    """What stands in a cell of the benchmarks."""
    return Text(
        f"times as fast as {bench.header.reference} in the same division; ≈ is within the noise floor", "dim"
    )


def mean_speed(bench: BenchReport | None, port: str, op: str | None) -> tuple[float, float]:
    """Speed of a port's readable variant and the noise floor, both as geometric means.

    Over the benchmarks of an op, or over all of them; (0, 0) where there is none.
    """
    if bench is None:
        return 0.0, 0.0
    rows = [r for r in bench.rows if r.port == port and r.first and r.speed > 0 and op in (None, r.op)]
    if not rows:
        return 0.0, 0.0
    noise = [math.log1p(bench.noise.get(row.case, 0.0)) for row in rows]
    return math.exp(sum(math.log(row.speed) for row in rows) / len(rows)), math.expm1(sum(noise) / len(rows))


def machine_line(bench: BenchReport) -> Text:
    """Where it was timed."""
    header = bench.header
    threads = f"{header.threads} thread{'' if header.threads == 1 else 's'}"
    how = f"{header.mode}, {header.rounds} rounds, {threads}"
    text = f"{header.machine.cpu}, {header.machine.cores} cores; {how}"
    return Text(text, "dim", overflow="ellipsis", no_wrap=True)


def _new_table(look: box.Box) -> Table:
    return Table(box=look, header_style="", pad_edge=False, collapse_padding=True)


def _slices(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[n : n + size] for n in range(0, len(items), size)]


def _of_port(results: Iterable[Result], port: str) -> Tally:
    return tally(result for result in results if result.port == port)


def _result_cell(t: Tally, speed: float, noise: float) -> Text:
    """Two lines: the counts; the share of the bound, and the speed where there is one."""
    if t.empty:
        return Text("-", "dim")
    text = Text.assemble(
        (str(t.passed), "green" if t.passed else "dim"),
        (" / ", "dim"),
        (str(t.failed), "bold red" if t.failed else "dim"),
        (" / ", "dim"),
        (str(t.unsupported), "yellow" if t.unsupported else "dim"),
        "\n",
    )
    share = show_share(t.share) if t.measured else ""
    text.append(f"{share:<8}" if speed else share, "bold red" if t.share > 1 else "")
    if speed:
        text.append("1" if speed == 1 else show_ratio(speed, noise), "cyan")
    return text


def _speed_cell(division: Division, case: str, port: str, entry: Entry | None, best: float) -> Text:
    """How many times as fast, among the best with the variant; why there is no number stands in the report."""
    if (case, port) in division.failed:
        return Text("failed", "bold red")
    if entry is None:
        return Text("-", "dim")
    shown = "1" if port == division.reference else show_ratio(entry.ratio, entry.noise)
    style = "dim" if shown == "≈" else "bold green" if entry.ratio == best else ""
    if division.title != BEST:
        return Text(shown, style)
    return Text.assemble((shown, style), "\n", (entry.row.variant, "dim"))


def print_narrow(console: Console, *parts: Table | Text | Group) -> None:
    """Prints at most 100 columns wide, in a file exactly so, whatever width the console believes to have."""
    was = console.width
    console.width = WIDTH if not console.is_terminal else min(WIDTH, was)
    try:
        for part in parts:
            console.print(part)
    finally:
        console.width = was
