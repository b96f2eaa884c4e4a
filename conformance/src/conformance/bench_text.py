"""The command `conformance bench`: a line per cell in the terminal."""

from statistics import median

from rich.console import Console

from .bench_divisions import BEST, Division, Entry, divide
from .bench_file import BenchReport
from .bench_stats import BenchRow
from .limits import Limits
from .tally import show_ns, show_ratio, three_digits


def show_bench(report: BenchReport, console: Console) -> None:
    """Every cell below its case, then what a reader should know."""
    reference = report.header.reference
    for case in report.cases():
        noise = report.noise.get(case, 0.0)
        _say(console, f"{case}   ({f'noise floor {noise:.0%}' if case in report.noise else 'no reference'})")
        _say(
            console,
            f"    {'':<22} {'minimum':>9} {'median':>9} {'first':>9} {'GFLOP/s':>14} {'GB/s':>14} {'speed':>8}"
            "  lowest to highest round",
        )
        for row in report.rows:
            if row.case == case:
                is_reference = row.port == reference and row.first
                _say(console, f"    {row.port + ':' + row.variant:<22} {_numbers(row, noise, is_reference)}")
    for division in divide(report):
        _show_division(division, console)
    _show_threads(report, console)
    if report.limits is not None:
        _say(console, limits_line(report.limits))
    for warning in report.warnings():
        _say(console, f"note: {warning}")
    for problem in report.footer.problems:
        _say(console, f"problem: {problem}")
    shares = "; in brackets the share of the multiply-adds and of the four streams" if report.limits else ""
    _say(console, f"speed: times as fast as {reference}; ≈ is within the noise floor{shares}")


def _show_division(division: Division, console: Console) -> None:
    """A line for each case: times as fast as the reference of the division, and the variant where it differs."""
    _say(console, f"{division.title}   (times as fast as {division.reference})")
    _say(console, f"    {'':<26}" + "".join(f"{port:>17}" for port in division.ports))
    for case, entries in division.rows:
        _say(
            console,
            f"    {case.removeprefix('bench/'):<26}"
            + "".join(
                f"{_ratio(case, port, entry, division):>17}"
                for port, entry in zip(division.ports, entries, strict=True)
            ),
        )
    means = "".join(
        f"{show_ratio(division.mean(port)) if port != division.reference else '1':>17}"
        for port in division.ports
    )
    _say(console, f"    {'geometric mean':<26}{means}")


def _show_threads(report: BenchReport, console: Console) -> None:
    """A line for each cell that was timed with more threads, beside the same with the fewest."""
    for threads in report.header.more_threads:
        rows = [row for row in report.threaded if row.threads == threads]
        _say(console, f"{threads} threads against {report.header.threads}")
        for row in rows:
            base = report.find(row.case, row.port, row.variant)
            if row.outcome != "pass" or not row.gains or base is None:
                said = row.message.splitlines()[0] if row.message else row.note or row.outcome
            else:
                low, high = min(row.gains), max(row.gains)
                said = (
                    f"{show_ns(base.min_ns):>9} {show_ns(row.min_ns):>9} {median(row.gains):>7.2f}×"
                    f"  {low:.2f} to {high:.2f}"
                )
            _say(
                console, f"    {row.case.removeprefix('bench/'):<26}{row.port + ':' + row.variant:<22} {said}"
            )


def _ratio(case: str, port: str, entry: Entry | None, division: Division) -> str:
    if (case, port) in division.failed:
        return "failed"
    if entry is None:
        return "-"
    shown = "1" if entry.row.port == division.reference else show_ratio(entry.ratio, entry.noise)
    return f"{entry.row.variant} {shown}" if division.title == BEST else shown


def limits_line(limits: Limits) -> str:
    """What the shares are of."""
    return (
        f"limits of one thread ({limits.tier}): {three_digits(limits.fma_gflops)} GFLOP/s of multiply-adds;"
        f" {three_digits(limits.read_gbs)} GB/s read as one stream, {three_digits(limits.read4_gbs)} as four,"
        f" {three_digits(limits.copy_gbs)} copied"
        + (f"; {three_digits(limits.wasm_gflops)} GFLOP/s in WebAssembly" if limits.wasm_gflops else "")
    )


def show_rate(rate: float, share: float) -> str:
    """A rate and, where the limit is known, the share of it."""
    if not rate:
        return ""
    return three_digits(rate) + (f" ({100 * share:.0f} %)" if share else "")


def _numbers(row: BenchRow, noise: float, is_reference: bool) -> str:
    if row.outcome != "pass":
        return f"{row.outcome}: {row.message.splitlines()[0] if row.message else ''}"
    if not row.rounds:
        return row.note
    speed, spread = "1", ""
    if not row.speed:  # there is none to compare with
        speed = "-"
    elif not is_reference:
        speed, spread = show_ratio(row.speed, noise), f"{row.speed_low:.2f} to {row.speed_high:.2f}"
    times = " ".join(f"{show_ns(ns):>9}" for ns in (row.min_ns, row.median_ns, row.first_ns))
    rates = f"{show_rate(row.gflops, row.peak_share):>14} {show_rate(row.gigabytes, row.read_share):>14}"
    disturbed = f"{row.disturbed} of {row.rounds} rounds disturbed" if row.disturbed else ""
    notes = "; ".join(filter(None, (disturbed, row.note)))
    return f"{times} {rates} {speed:>8}  {spread}{'  ' if notes else ''}{notes}"


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
