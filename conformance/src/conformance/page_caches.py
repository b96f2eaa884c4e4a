"""What a cache saves, and what it holds, as the page shows them: a plot, and two tables."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .decode import Decoding
from .decode_counts import CACHE, WAYS, count
from .decode_text import exponent, show_ms, show_times
from .kv_bytes import KvBytes
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
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.places)


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
class DecodeRow:
    """One way at one length, as text: numbers, each with how many times the cache's it is."""

    tokens: str
    way: str
    numbers: list[tuple[str, str]]


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
    lengths, width, heads = found.header.lengths, found.header.width, found.header.heads
    rows, grows = [], []
    for n in lengths:
        best = count(CACHE, n, width, heads)
        for way in WAYS:
            c = count(way, n, width, heads)
            numbers = [
                (f"{c.multiply_adds / 1e6:,.1f}", show_times(c.multiply_adds / best.multiply_adds)),
                (f"{c.moved / 2**20:,.1f}", show_times(c.moved / best.moved)),
            ]
            numbers += [
                (show_ms(found.seconds(port, way)[n]), show_times(found.saved(port, way, n)))
                for port, _ in ports
            ]
            rows.append(DecodeRow(f"{n:,}", way, numbers))
    for way in WAYS if len(lengths) > 1 else ():
        counted = {n: count(way, n, width, heads) for n in lengths}
        powers = [exponent({n: c.multiply_adds for n, c in counted.items()})]
        powers += [exponent({n: c.moved for n, c in counted.items()})]
        powers += [exponent(found.seconds(port, way)) for port, _ in ports]
        grows.append((way, [f"{power:.2f}" for power in powers]))
    held = count(CACHE, lengths[-1], width, heads).held
    return DecodeView(found, ports, _plot(found, ports), rows, grows, held)


def view_bytes(found: KvBytes) -> BytesView:
    """The ways that some port was asked about."""
    names = found.header.ports
    rows = [
        BytesRow(
            row.name,
            f"{row.slots:,}",
            f"{found.a_token(row):,.2f}".removesuffix(".00"),
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
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    floor = TOP + HEIGHT
    across = _axis(math.log(lengths[0]), math.log(lengths[-1]), 12, WIDTH - 12)
    up = _axis(low, max(high, low + 1), floor, TOP)
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
        y_ticks=[(up(power), _show_decade(power)) for power in range(low, max(high, low + 1) + 1)],
        panels=panels,
    )


def _axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From a value to a place; the middle where there is but one value."""
    if high == low:
        return lambda value: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _show_decade(power: int) -> str:
    """10 to the power, in ms."""
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:.{-power}f}"
