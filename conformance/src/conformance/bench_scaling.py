"""How time grows with the length: slopes on logarithmic axes, of prefill and of decode."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console

from .bench_file import BenchReport
from .repository import ROOT
from .tally import show_ns

DEFAULT_SCALING = ROOT / "site/scaling.jsonl"
NAME = re.compile(r"bench/scaling/(prefill|decode)/(\d+)$")
FIT_FROM = {"prefill": 512, "decode": 1024}  # below, a call is mostly overhead
LEAST_POINTS = 2


@dataclass(frozen=True)
class Curve:
    """One variant of one port. times: the fastest nanoseconds of a call, by length.

    exponent: the slope of the fitted line over the long ones; None where fewer than two of those were timed.
    """

    what: str
    port: str
    variant: str
    times: dict[int, float]

    @property
    def exponent(self) -> float | None:
        """The slope."""
        long = {n: ns for n, ns in self.times.items() if n >= FIT_FROM[self.what]}
        return fit(long) if len(long) >= LEAST_POINTS else None


def fit(times: Mapping[int, float]) -> float:
    """p of the line log t = p log n + c that is nearest to all, by least squares."""
    x, y = [math.log(n) for n in times], [math.log(t) for t in times.values()]
    across, up = fmean(x), fmean(y)
    return sum((a - across) * (b - up) for a, b in zip(x, y, strict=True)) / sum((a - across) ** 2 for a in x)


def find_curves(bench: BenchReport) -> list[Curve]:
    """Of prefill and then of decode, in the order of the report. Empty where nothing is of the suite `scaling`."""
    curves: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in bench.rows:
        named = NAME.match(row.case)
        if named and row.min_ns:
            curves.setdefault((named[1], row.port, row.variant), {})[int(named[2])] = row.min_ns
    found = [Curve(*name, times) for name, times in curves.items()]
    return sorted(found, key=lambda curve: curve.what != "prefill")


def show_scaling(bench: BenchReport, console: Console) -> None:
    """A table for each: the fastest time at each length, and how it grows."""
    curves = find_curves(bench)
    for what, letter in (("prefill", "T"), ("decode", "Tk")):
        mine = [curve for curve in curves if curve.what == what]
        if not mine:
            continue
        lengths = sorted({n for curve in mine for n in curve.times})
        _say(console, f"{what}: fastest time of a call, and the slope from {letter} = {FIT_FROM[what]} on")
        _say(console, f"    {'':<22}" + "".join(f"{n:>10}" for n in lengths) + f"{'grows as':>12}")
        for curve in mine:
            times = "".join(f"{show_ns(curve.times[n]) if n in curve.times else '-':>10}" for n in lengths)
            _say(
                console, f"    {curve.port + ':' + curve.variant:<22}{times}{show_growth(curve, letter):>12}"
            )


def show_growth(curve: Curve, letter: str) -> str:
    """`T^1.98`, or a dash."""
    return "-" if curve.exponent is None else f"{letter}^{curve.exponent:.2f}"


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
