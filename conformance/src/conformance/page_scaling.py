"""Time against the length, as the page shows it: two panels on logarithmic axes, and the slopes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .bench_file import BenchReport
from .bench_scaling import KINDS, Curve, find_curves, show_growth
from .page_axes import axis, decades, polyline
from .page_results import colour_of

WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 60, 24, 12, 34  # for the labels of the axes


@dataclass(frozen=True)
class Line:
    """One variant: its name, colour, whether it is the readable one, places on the paper, and how it grows."""

    name: str
    colour: str
    first: bool
    places: list[tuple[float, float]]
    grows: str

    @property
    def path(self) -> str:
        """The points of a polyline."""
        return polyline(self.places)


@dataclass(frozen=True)
class Panel:
    """One kind of growth; ticks are places and labels, fitted_from the length from which the slopes are taken."""

    what: str
    letter: str
    fitted_from: int
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Line]


@dataclass(frozen=True)
class ScalingView:
    """The section."""

    bench: BenchReport
    panels: list[Panel]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def view_scaling(bench: BenchReport) -> ScalingView:
    """Every curve of the report; a panel without one is left out."""
    curves = find_curves(bench)
    chosen = ([curve for curve in curves if curve.what == what] for what in KINDS)
    return ScalingView(bench, [_panel(bench, some) for some in chosen if some])


def _panel(bench: BenchReport, curves: Sequence[Curve]) -> Panel:
    what = curves[0].what
    kind = KINDS[what]
    order = {port.name: n for n, port in enumerate(bench.header.ports)}
    first = {(row.port, row.variant): row.first for row in bench.rows}
    lengths = sorted({n for curve in curves for n in curve.times})
    times = [value / kind.unit for curve in curves for value in curve.times.values()]
    powers = decades(times)
    across = axis(math.log(lengths[0]), math.log(lengths[-1]), LEFT, WIDTH - RIGHT)
    up = axis(powers[0], powers[-1], HEIGHT - BOTTOM, TOP)
    return Panel(
        what=kind.title,
        letter=kind.letter,
        fitted_from=kind.fit_from,
        x_ticks=[(across(math.log(n)), f"{n:,}") for n in lengths],
        y_ticks=[(up(power), kind.show(10.0**power * kind.unit)) for power in powers],
        lines=[
            Line(
                f"{curve.port} {curve.variant}",
                colour_of(curve.port, order.get(curve.port, 0)),
                first[curve.port, curve.variant],
                [
                    (across(math.log(n)), up(math.log10(value / kind.unit)))
                    for n, value in sorted(curve.times.items())
                ],
                show_growth(curve, kind.letter),
            )
            for curve in curves
        ],
    )
