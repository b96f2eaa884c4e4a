"""A small plot as SVG: lines over two logarithmic axes, readable in light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#d1495b", "#e0a030", "#2a9d8f", "#4070c0")
WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 110, 34, 50
GAP = 14  # between the names of two lines


@dataclass(frozen=True)
class Line:
    """Points (x, y) with x, y > 0, at least one."""

    name: str
    points: dict[int, float]


@dataclass(frozen=True)
class Axis:
    """From a value > 0 to a place on the paper."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Where the value is drawn."""
        if self.high == self.low:
            return (self.start + self.end) / 2
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


def log_log(lines: Sequence[Line], x_name: str, y_name: str) -> str:
    """The text of an SVG file; each line's name stands at its end."""
    xs = sorted({x for line in lines for x in line.points})
    ys = [y for line in lines for y in line.points.values()]
    x_axis = Axis(xs[0], xs[-1], LEFT, WIDTH - RIGHT)
    y_axis = Axis(
        10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys))), HEIGHT - BOTTOM, TOP
    )
    decades = range(round(math.log10(y_axis.low)), round(math.log10(y_axis.high)) + 1)
    parts = [_grid(x_axis.place(x), None, f"{x:,}") for x in xs]
    parts += [
        _grid(None, y_axis.place(10**n), f"{10**n:,}" if n >= 0 else f"{10.0**n:.{-n}f}") for n in decades
    ]
    ends = {}
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        places = [(x_axis.place(x), y_axis.place(y)) for x, y in sorted(line.points.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        ends[line.name, colour] = places[-1]
    lowest = -math.inf
    for (name, colour), (x, y) in sorted(ends.items(), key=lambda end: end[1][1]):
        lowest = max(y + 4, lowest + GAP)
        parts.append(f'<text x="{x + 8:.1f}" y="{lowest:.1f}" fill="{colour}">{escape(name)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 10}" fill="#808080" text-anchor="middle">{escape(x_name)}</text>'
    )
    parts.append(f'<text x="4" y="14" fill="#808080">{escape(y_name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="12">', *parts, "</svg>\n"])


def _grid(x: float | None, y: float | None, label: str) -> str:
    """A line across the plot at x or at y, and what it stands for."""
    x1, x2 = (LEFT, WIDTH - RIGHT) if x is None else (x, x)
    y1, y2 = (HEIGHT - BOTTOM, TOP) if y is None else (y, y)
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    place = f'x="{LEFT - 8}" y="{y1 + 4:.1f}" text-anchor="end"'
    if y is None:
        place = f'x="{x1:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle"'
    line = f'<line {ends} stroke="#808080" stroke-opacity="0.3"/>'
    return f'{line}<text {place} fill="#808080">{label}</text>'
