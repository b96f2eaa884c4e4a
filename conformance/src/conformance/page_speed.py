"""A benchmark as the page shows it: a column for each port's variant, and a chart on a log axis."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .bench_divisions import Division, divide
from .bench_file import BenchReport
from .bench_goals import LongRow, long_rows, thread_gains
from .bench_stats import BenchRow
from .bench_text import limits_line, show_rate
from .case import Suite
from .cases.bench_caches import is_long
from .page_results import colour_of
from .tally import list_variants, show_ns, show_ratio

MARGIN = 1.15  # room on both sides of the outermost mark, as a factor
STEPS = ((30, (1, 2, 5)), (1000, (1, 3)), (math.inf, (1,)))  # ticks of a decade, up to that span of the axis


@dataclass(frozen=True)
class SpeedColumn:
    """One port's variant."""

    port: str
    variant: str
    first: bool
    colour: str


@dataclass(frozen=True)
class SpeedCell:
    """One case on one variant, as text.

    x, low, high: its place on the axis in percent; x is None when it was not timed. same: within the noise
    floor of the reference. best: the fastest of its case, unless that is noise. why: what there is to know.
    """

    column: SpeedColumn
    ratio: str
    time: str
    rate: str
    bandwidth: str
    x: float | None
    low: float
    high: float
    same: bool
    best: bool
    failed: bool
    why: str


@dataclass(frozen=True)
class SpeedCase:
    """A row of the table and of the chart. noise: the band around 1, in percent of the axis."""

    id: str
    note: str
    op: str
    cells: list[SpeedCell]
    noise: float
    noise_from: float
    noise_to: float

    @property
    def best(self) -> SpeedCell | None:
        """The fastest."""
        return next((cell for cell in self.cells if cell.best), None)


@dataclass(frozen=True)
class Axis:
    """A log axis from `low` to `high` times the reference; ticks as (percent, label)."""

    low: float
    high: float
    ticks: list[tuple[float, str]]

    def place(self, ratio: float) -> float:
        """Where a ratio stands, in percent of the width."""
        return 100 * math.log(ratio / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True)
class ThreadGains:
    """What so many threads gain over the fewest: a column for each rung, a row for each case; empty where not timed."""

    threads: int
    rungs: list[str]
    rows: list[tuple[str, list[str]]]


@dataclass(frozen=True)
class LongPasts:
    """One token over a long past: a column for each rung and past, a row for each kind of cache."""

    columns: list[str]
    rows: list[tuple[str, list[str]]]


@dataclass(frozen=True)
class SpeedView:
    """All that the section on speed shows."""

    bench: BenchReport
    columns: list[SpeedColumn]
    cases: list[SpeedCase]
    axis: Axis
    one: float
    divisions: list[Division]
    limits: str
    gains: list[ThreadGains]
    long: LongPasts


def view_speed(bench: BenchReport, suites: Iterable[Suite] = ()) -> SpeedView:
    """The benchmark with what the manifests say about its cases."""
    notes = {case.id: case.note for suite in suites for case in suite.cases}
    order = {port.name: n for n, port in enumerate(bench.header.ports)}
    columns = [
        SpeedColumn(port, variant, first, colour_of(port, order.get(port, 0)))
        for port, variant, first in list_variants(bench)
    ]
    axis = make_axis([r for row in bench.rows if row.speed > 0 for r in (row.speed_low, row.speed_high)])
    # Without a reference a cell has no place among the others; a long past has a table of its own.
    compared = [case for case in bench.cases() if not is_long(case)]
    cases = [_view_case(bench, case, columns, axis, notes) for case in compared]
    limits = limits_line(bench.limits) if bench.limits else ""
    gains = [_view_gains(bench, threads) for threads in bench.header.more_threads]
    return SpeedView(
        bench, columns, cases, axis, axis.place(1), divide(bench), limits, gains, _view_long(bench)
    )


def _view_gains(bench: BenchReport, threads: int) -> ThreadGains:
    found = thread_gains(bench, threads)
    cases = list(dict.fromkeys(case for gains in found.values() for case in gains))
    rows = [
        (case, [f"{gains[case]:.2f}×" if case in gains else "" for gains in found.values()]) for case in cases
    ]
    return ThreadGains(threads, [f"{port} {variant}" for port, variant in found], rows)


def _view_long(bench: BenchReport) -> LongPasts:
    found = {
        (f"{port} {variant}, {row.past:,} tokens", row.kind): row
        for (port, variant), rows in long_rows(bench).items()
        for row in rows
    }
    columns, kinds = (list(dict.fromkeys(names)) for names in zip(*found, strict=True)) if found else ([], [])
    rows = [(kind, [_long_cell(found.get((column, kind))) for column in columns]) for kind in kinds]
    return LongPasts(columns, rows)


def _long_cell(row: LongRow | None) -> str:
    if row is None:
        return ""
    gain = f", {show_ratio(row.ratio)}" if row.ratios and row.kind != "f32" else ""
    return f"{show_ns(row.row.min_ns)}{gain}"


def make_axis(ratios: Sequence[float]) -> Axis:
    """An axis that holds all ratios, and 1."""
    good = [ratio for ratio in ratios if ratio > 0 and math.isfinite(ratio)]
    low, high = min([*good, 1 / MARGIN]) / MARGIN, max([*good, MARGIN]) * MARGIN
    steps = next(steps for span, steps in STEPS if high / low <= span)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    at = sorted(step * 10.0**decade for decade in decades for step in steps)
    axis = Axis(low, high, [])
    axis.ticks.extend((axis.place(tick), f"{tick:g}×") for tick in at if low <= tick <= high)
    return axis


def _view_case(
    bench: BenchReport, case: str, columns: Sequence[SpeedColumn], axis: Axis, notes: dict[str, str]
) -> SpeedCase:
    rows = {(row.port, row.variant): row for row in bench.rows if row.case == case}
    best = max((row.speed for row in rows.values()), default=0.0)
    noise = bench.noise.get(case, 0.0)
    cells = [
        _view_cell(column, rows.get((column.port, column.variant)), noise, best, axis, bench.header.reference)
        for column in columns
    ]
    op = next(iter(rows.values())).op
    band = axis.place(1 / (1 + noise)), axis.place(1 + noise)
    return SpeedCase(case, notes.get(case, ""), op, cells, noise, *(min(max(x, 0.0), 100.0) for x in band))


def _view_cell(
    column: SpeedColumn, row: BenchRow | None, noise: float, best: float, axis: Axis, reference: str
) -> SpeedCell:
    name = f"{column.port} {column.variant}"
    if row is None or not row.rounds or row.speed <= 0:
        why = f"{name}: {(row.message or row.note or row.outcome) if row else 'not asked'}"
        failed = row is not None and row.outcome not in ("pass", "unsupported")
        return SpeedCell(column, "", "", "", "", None, 0, 0, same=False, best=False, failed=failed, why=why)
    is_reference = column.port == reference and column.first
    ratio = "1" if is_reference else show_ratio(row.speed, noise)
    why = (
        f"{name}: {row.speed:.3g} times as fast"
        f" ({row.speed_low:.3g} to {row.speed_high:.3g} in {row.rounds} rounds),"
        f" median {show_ns(row.median_ns)}, minimum {show_ns(row.min_ns)}, first call {show_ns(row.first_ns)}"
        f"{'; ' + row.note if row.note else ''}"
    )
    return SpeedCell(
        column=column,
        ratio=ratio,
        time=show_ns(row.median_ns),
        rate=show_rate(row.gflops, row.peak_share),
        bandwidth=show_rate(row.gigabytes, row.read_share),
        x=axis.place(row.speed),
        low=axis.place(row.speed_low),
        high=axis.place(row.speed_high),
        same=ratio == "≈",
        best=row.speed == best and ratio != "≈",
        failed=False,
        why=why,
    )
