"""What `conformance decode` prints: one table of all ports, and how each way grows."""

import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .decode import Decoding
from .decode_counts import CACHE, EVERYTHING, WAYS, count
from .table import box_of, print_narrow


def show_decode(found: Decoding, console: Console) -> None:
    """The table, and what it counts."""
    ports, lengths = found.measured(), found.header.lengths
    width, heads = found.header.width, found.header.heads
    if ports:
        table = Table(box=box_of(console), header_style="", pad_edge=False, collapse_padding=True)
        for name in ("T", "made again", "mul-adds,\nmillion", "moved,\nMiB"):
            table.add_column(name, justify="left" if name == "made again" else "right", no_wrap=True)
        for port in ports:
            table.add_column(Text.assemble((port, "bold"), "\nms"), justify="right", no_wrap=True)
        for n in lengths:
            best = count(CACHE, n, width, heads)
            for way in WAYS:
                c = count(way, n, width, heads)
                table.add_row(
                    f"{n:,}" if way == EVERYTHING else "",
                    way,
                    _cell(f"{c.multiply_adds / 1e6:,.1f}", c.multiply_adds / best.multiply_adds),
                    _cell(f"{c.moved / 2**20:,.1f}", c.moved / best.moved),
                    *[
                        _cell(show_ms(found.seconds(port, way)[n]), found.saved(port, way, n))
                        for port in ports
                    ],
                )
            table.add_section()
        if len(lengths) > 1:
            for way in WAYS:
                counted = {n: count(way, n, width, heads) for n in lengths}
                grows = [
                    exponent({n: c.multiply_adds for n, c in counted.items()}),
                    exponent({n: c.moved for n, c in counted.items()}),
                    *[exponent(found.seconds(port, way)) for port in ports],
                ]
                table.add_row(
                    "grows" if way == EVERYTHING else "", way, *[f"T^{power:.2f}" for power in grows]
                )
        held = count(CACHE, lengths[-1], width, heads).held
        said = (
            f"One layer, width {width}, {heads} heads, f32, one thread: tokens are generated one at a time."
            " x n: n times the cache's. The counts are the same in every port; the cache holds"
            f" {held / 2**20:,.2f} MiB after {lengths[-1]:,} tokens, the other ways hold nothing."
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


def _cell(number: str, ratio: float) -> Text:
    """A number, and below it how many times the cache's that is."""
    times = show_times(ratio)
    return Text.assemble(number, (f"\n{times}" if times else "", "cyan"))
