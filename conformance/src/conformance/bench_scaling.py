"""How time grows with length, batch and threads, and memory with the length: slopes on logarithmic axes."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console

from .bench_file import BenchReport
from .repository import ROOT
from .tally import show_ns, three_digits

DEFAULT_SCALING = ROOT / "site/scaling.jsonl"
NAME = re.compile(r"bench/scaling/(prefill|decode|batch)/(\d+)$")
THREADED = "bench/scaling/prefill/2048"  # whose time is shown against the threads
LEAST_POINTS = 2


def show_mebibytes(count: float) -> str:
    """A size."""
    return f"{three_digits(count / 2**20)} MiB"


@dataclass(frozen=True)
class Kind:
    """What grows with what. fit_from: below, a call is mostly overhead. show: a value, with its unit.

    unit: of the marks of an axis.
    """

    title: str
    letter: str
    fit_from: int
    show: Callable[[float], str] = show_ns
    unit: int = 1


KINDS = {
    "prefill": Kind("prefill: fastest time of a call", "T", 512),
    "decode": Kind("decode: fastest time of a call", "Tk", 1024),
    "batch": Kind("batch of prefills of 128: fastest time of a call", "B", 1),
    "threads": Kind("threads, prefill of 2048: fastest time of a call", "n", 1),
    "memory": Kind("memory of a call beyond what was there before", "T", 4096, show_mebibytes, 2**20),
}


@dataclass(frozen=True)
class Curve:
    """One variant of one port. times: the fastest nanoseconds of a call, by length; of `memory` the bytes it took.

    exponent: the slope of the fitted line over the long ones; None where fewer than two of those were timed.
    """

    what: str
    port: str
    variant: str
    times: dict[int, float]

    @property
    def exponent(self) -> float | None:
        """The slope."""
        long = {n: ns for n, ns in self.times.items() if n >= KINDS[self.what].fit_from}
        return fit(long) if len(long) >= LEAST_POINTS else None


def fit(times: Mapping[int, float]) -> float:
    """p of the line log t = p log n + c that is nearest to all, by least squares."""
    x, y = [math.log(n) for n in times], [math.log(t) for t in times.values()]
    across, up = fmean(x), fmean(y)
    return sum((a - across) * (b - up) for a, b in zip(x, y, strict=True)) / sum((a - across) ** 2 for a in x)


def find_curves(bench: BenchReport) -> list[Curve]:
    """In the order of KINDS, each in the order of the report. Empty where nothing is of the suite `scaling`."""
    curves: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in bench.rows:
        named = NAME.match(row.case)
        if named and row.min_ns:
            curves.setdefault((named[1], row.port, row.variant), {})[int(named[2])] = row.min_ns
    if curves:
        for row in bench.threaded:
            if row.min_ns and row.case == THREADED:
                base = bench.find(row.case, row.port, row.variant)
                one = {bench.header.threads: base.min_ns} if base is not None and base.min_ns else {}
                curves.setdefault(("threads", row.port, row.variant), one)[row.threads] = row.min_ns
        for taken in bench.memory:
            if taken.bytes <= 0:  # all of it was there before
                continue
            curves.setdefault(("memory", taken.port, taken.variant), {})[taken.length] = float(taken.bytes)
    found = [Curve(*name, times) for name, times in curves.items()]
    return sorted(found, key=lambda curve: list(KINDS).index(curve.what))


def show_scaling(bench: BenchReport, console: Console) -> None:
    """A table for each: the fastest time at each length, and how it grows."""
    curves = find_curves(bench)
    for what, kind in KINDS.items():
        mine = [curve for curve in curves if curve.what == what]
        if not mine:
            continue
        lengths = sorted({n for curve in mine for n in curve.times})
        _say(console, f"{kind.title}, and the slope from {kind.letter} = {kind.fit_from} on")
        _say(console, f"    {'':<22}" + "".join(f"{n:>10}" for n in lengths) + f"{'grows as':>12}")
        for curve in mine:
            times = "".join(f"{kind.show(curve.times[n]) if n in curve.times else '-':>10}" for n in lengths)
            grows = show_growth(curve, kind.letter)
            _say(console, f"    {curve.port + ':' + curve.variant:<22}{times}{grows:>12}")


def show_growth(curve: Curve, letter: str) -> str:
    """`T^1.98`, or a dash."""
    return "-" if curve.exponent is None else f"{letter}^{curve.exponent:.2f}"


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
