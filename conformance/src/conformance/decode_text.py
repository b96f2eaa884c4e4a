"""What `conformance decode` found, as text: one table of all ports, and how each way grows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .decode import Decoding
from .decode_counts import CACHE, EVERYTHING, WAYS
from .table import box_of, print_narrow


@dataclass(frozen=True)
class DecodeRow:
    """One way at one length, as text: numbers, each with how many times the cache's it is."""

    tokens: str
    way: str
    numbers: list[tuple[str, str]]


def list_rows(found: Decoding) -> list[DecodeRow]:
    """Every way at every length: multiply-adds in millions, MiB moved, and the milliseconds of each measured port."""
    rows = []
    for n in found.header.lengths:
        best = found.count(CACHE, n)
        for way in WAYS:
            c = found.count(way, n)
            numbers = [
                (f"{c.multiply_adds / 1e6:,.1f}", show_times(c.multiply_adds / best.multiply_adds)),
                (f"{c.moved / 2**20:,.1f}", show_times(c.moved / best.moved)),
            ]
            numbers += [
                (show_ms(found.seconds(port, way)[n]), show_times(found.saved(port, way, n)))
                for port in found.measured()
            ]
            rows.append(DecodeRow(f"{n:,}", way, numbers))
    return rows


def list_growth(found: Decoding) -> list[tuple[str, list[str]]]:
    """The power of T of each column, for each way; nothing where there is but one length."""
    lengths, grows = found.header.lengths, []
    for way in WAYS if len(lengths) > 1 else ():
        counted = {n: found.count(way, n) for n in lengths}
        powers = [exponent({n: c.multiply_adds for n, c in counted.items()})]
        powers += [exponent({n: c.moved for n, c in counted.items()})]
        powers += [exponent(found.seconds(port, way)) for port in found.measured()]
        grows.append((way, [f"{power:.2f}" for power in powers]))
    return grows


def show_decode(found: Decoding, console: Console) -> None:
    """The table, and what it counts."""
    ports, longest = found.measured(), found.header.lengths[-1]
    if ports:
        table = Table(box=box_of(console), header_style="", pad_edge=False, collapse_padding=True)
        for name in ("T", "made again", "mul-adds,\nmillion", "moved,\nMiB"):
            table.add_column(name, justify="left" if name == "made again" else "right", no_wrap=True)
        for port in ports:
            table.add_column(Text.assemble((port, "bold"), "\nms"), justify="right", no_wrap=True)
        for row in list_rows(found):
            cells = [_cell(number, times) for number, times in row.numbers]
            table.add_row(row.tokens if row.way == EVERYTHING else "", row.way, *cells)
            if row.way == WAYS[-1]:
                table.add_section()
        for way, powers in list_growth(found):
            table.add_row("grows" if way == EVERYTHING else "", way, *[f"T^{power}" for power in powers])
        header, mib = found.header, found.count(CACHE, longest).held / 2**20
        said = (
            f"One layer, width {header.width}, {header.heads} heads, f32, one thread: tokens are generated one at a"
            " time. x n: n times the cache's. The counts are the same in every port; the cache holds"
            f" {mib:,.2f} MiB after {longest:,} tokens, the other ways hold nothing."
        )
        print_narrow(console, Text(said, "italic"), table)
    for problem in found.footer.problems:
        console.print(f"problem: {problem}", style="red", markup=False, highlight=False, soft_wrap=True)


def exponent(of: Mapping[int, float]) -> float:
    """p in y ~ T^p, between the two longest."""
    *_, short, long = sorted(of)
    return math.log(of[long] / of[short]) / math.log(long / short)


def show_ms(seconds: float) -> str:
    """Milliseconds, with a fraction where it says something."""
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 999.95 else f"{ms:,.1f}" if ms >= 9.995 else f"{ms:,.2f}"


def show_times(ratio: float) -> str:
    """How many times the cache's; nothing for the cache itself."""
    if ratio == 1:
        return ""
    return f"x {ratio:,.1f}" if ratio < 99.95 else f"x {ratio:,.0f}"


def _cell(number: str, times: str) -> Text:
    """A number, and below it how many times the cache's that is."""
    return Text.assemble(number, (f"\n{times}" if times else "", "cyan"))
