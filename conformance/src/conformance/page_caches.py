"""What a cache saves, and what it holds, as the page shows them: a plot, and two tables."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .decode import Decoding
from .decode_counts import CACHE, WAYS
from .decode_text import DecodeRow, list_growth, list_rows
from .kv_bytes import KvBytes
from .kv_bytes_text import show_token
from .page_axes import axis, decades, polyline
from .page_results import colour_of

WIDTH, HEIGHT, GAP = 176, 210, 14  # of a panel, and what is between two
LEFT, TOP, BOTTOM = 64, 26, 34  # for the labels of the axes


@dataclass(frozen=True)
class Curve:
    """A way of one port: places on the paper."""

    way: str
    places: list[tuple[float, float]]

    @property
    def path(self) -> str:
        """The points of a polyline."""
        return polyline(self.places)


@dataclass(frozen=True)
class Panel:
    """One port. left: where it begins."""

    port: str
    colour: str
    left: float
    curves: list[Curve]


@dataclass(frozen=True)
class Plot:
    """A panel for each port, all on the same two logarithmic axes. ticks: places and labels."""

    width: float
    height: float
    top: float
    bottom: float
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    panels: list[Panel]


@dataclass(frozen=True)
class DecodeView:
    """The section "What a cache saves". held: bytes of the cache after the longest text."""

    decoding: Decoding
    ports: list[tuple[str, str]]
    plot: Plot | None
    rows: list[DecodeRow]
    grows: list[tuple[str, list[str]]]
    held: int


@dataclass(frozen=True)
class BytesRow:
    """One way to keep tokens, as text. share: of f32, for the bar."""

    name: str
    slots: str
    token: str
    share: float
    ports: list[tuple[str, str]]


@dataclass(frozen=True)
class BytesView:
    """What a token takes."""

    found: KvBytes
    rows: list[BytesRow]


def view_decode(found: Decoding) -> DecodeView:
    """The measured ports in their order."""
    ports = [(name, colour_of(name, found.header.ports.index(name))) for name in found.measured()]
    held = found.count(CACHE, found.header.lengths[-1]).held
    return DecodeView(found, ports, _plot(found, ports), list_rows(found), list_growth(found), held)


def view_bytes(found: KvBytes) -> BytesView:
    """The ways that some port was asked about."""
    names = found.header.ports
    rows = [
        BytesRow(
            row.name,
            f"{row.slots:,}",
            show_token(found, row),
            found.share(row),
            [(port, colour_of(port, names.index(port))) for port in names if port in row.held],
        )
        for row in found.rows
        if row.held
    ]
    return BytesView(found, rows)


def _plot(found: Decoding, ports: Sequence[tuple[str, str]]) -> Plot | None:
    """None where nothing was measured."""
    lengths = found.header.lengths
    times = [point.seconds * 1e3 for point in found.points]
    if not times:
        return None
    powers = decades(times)
    floor = TOP + HEIGHT
    across = axis(math.log(lengths[0]), math.log(lengths[-1]), 12, WIDTH - 12)
    up = axis(powers[0], powers[-1], floor, TOP)
    panels = []
    for n, (port, colour) in enumerate(ports):
        left = LEFT + n * (WIDTH + GAP)
        curves = []
        for way in WAYS:
            seconds = found.seconds(port, way)
            places = [(left + across(math.log(t)), up(math.log10(seconds[t] * 1e3))) for t in lengths]
            curves.append(Curve(way, places))
        panels.append(Panel(port, colour, left, curves))
    return Plot(
        width=LEFT + len(ports) * (WIDTH + GAP),
        height=floor + BOTTOM,
        top=TOP,
        bottom=floor,
        x_ticks=[(across(math.log(t)), f"{t:,}") for t in lengths],
        y_ticks=[(up(power), _show_decade(power)) for power in powers],
        panels=panels,
    )


def _show_decade(power: int) -> str:
    """10 to the power, in ms."""
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:.{-power}f}"
