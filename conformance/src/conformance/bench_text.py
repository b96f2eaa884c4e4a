"""The command `conformance bench`: a line per cell in the terminal."""

from rich.console import Console

from .bench_file import BenchReport
from .bench_stats import BenchRow
from .tally import show_ns, show_ratio


def show_bench(report: BenchReport, console: Console) -> None:
    """Every cell below its case, then what a reader should know."""
    reference = report.header.reference
    for case in report.cases():
        noise = report.noise.get(case, 0.0)
        _say(console, f"{case}   (noise floor {noise:.0%})")
        _say(
            console,
            f"    {'':<22} {'minimum':>9} {'median':>9} {'first':>9} {'speed':>8}  lowest to highest round",
        )
        for row in report.rows:
            if row.case == case:
                is_reference = row.port == reference and row.first
                _say(console, f"    {row.port + ':' + row.variant:<22} {_numbers(row, noise, is_reference)}")
    for warning in report.warnings():
        _say(console, f"note: {warning}")
    for problem in report.footer.problems:
        _say(console, f"problem: {problem}")
    _say(console, f"speed: times as fast as {reference}; ≈ is within the noise floor")


def _numbers(row: BenchRow, noise: float, is_reference: bool) -> str:
    if row.outcome != "pass":
        return f"{row.outcome}: {row.message.splitlines()[0] if row.message else ''}"
    if not row.rounds:
        return row.note
    speed, spread = "1", ""
    if not is_reference:
        speed, spread = show_ratio(row.speed, noise), f"{row.speed_low:.2f} to {row.speed_high:.2f}"
    times = " ".join(f"{show_ns(ns):>9}" for ns in (row.min_ns, row.median_ns, row.first_ns))
    return f"{times} {speed:>8}  {spread}{'  ' if row.note else ''}{row.note}"


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
