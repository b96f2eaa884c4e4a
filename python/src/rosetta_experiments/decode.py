"""What a KV cache saves: one layer of multi-head attention generates T tokens in three ways, counted and timed.

Over T steps recomputing everything grows as T³ in the end, recomputing keys and values as T², and the cache as T for as
long as T is well below the width, then as T² too. The measured exponents are lower at first: a call takes its time
however little there is to do. decode_ways has the three ways and their formulas.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from . import one_thread
from .decode_article import article_text
from .decode_check import error
from .decode_ways import (
    CACHE,
    EVERYTHING,
    NUMPY,
    WAYS,
    Library,
    Run,
    cost,
    generate,
    random_weights,
    torch_library,
)
from .plot import Line, log_log
from .table import draw, sizes

LENGTHS, QUICK = "64,128,256,512,1024", "16,32,64,128"


class WrongOutput(Exception):
    """A way does not make what the layer makes."""


def measure(
    width: int, heads: int, lengths: Sequence[int], repeats: int, library: Library = NUMPY, seed: int = 0
) -> Iterator[tuple[str, Run]]:
    """Each way, its seconds the least of `repeats`, since noise only ever adds. Raises WrongOutput."""
    weights = random_weights(width, seed)
    first = np.random.default_rng(seed).standard_normal((1, 1, width)).astype(weights[0].dtype)
    for way in WAYS:
        generate(way, weights, heads, first, [min(4, *lengths)], library)  # loads and warms up
        runs = [generate(way, weights, heads, first, lengths, library) for _ in range(repeats)]
        for run in runs:
            off, bound = error(run, weights, heads)
            if not off <= bound:
                raise WrongOutput(f"{way}: an output is off by {off:.2g}, and may be by {bound:.2g}")
        yield way, replace(runs[0], seconds={n: min(run.seconds[n] for run in runs) for n in lengths})


def exponent(of: dict[int, float] | dict[int, int]) -> float:
    """p in y ~ T^p, between the two longest."""
    *_, short, long = sorted(of)
    return math.log(of[long] / of[short]) / math.log(long / short)


def cost_table(lengths: Sequence[int], width: int, heads: int, seconds: dict[str, dict[int, float]]) -> str:
    """A row for each length and way; last, how each way grows."""
    rows: list[Sequence[object]] = []
    counted = {way: {n: cost(way, n, width, heads) for n in lengths} for way in WAYS}
    for n in lengths:
        best, fastest = counted[CACHE][n], seconds[CACHE][n]
        for way in WAYS:
            c, s = counted[way][n], seconds[way][n]
            rows.append(
                (
                    n if way == EVERYTHING else "",
                    way,
                    f"{c.multiply_adds / 1e6:,.1f}",
                    _times(c.multiply_adds / best.multiply_adds),
                    f"{c.moved / 2**20:,.1f}",
                    _times(c.moved / best.moved),
                    f"{s * 1e3:,.1f}",
                    _times(s / fastest),
                )
            )
    if len(lengths) > 1:
        for way in WAYS:
            adds = {n: c.multiply_adds for n, c in counted[way].items()}
            moved = {n: c.moved for n, c in counted[way].items()}
            grows = [f"T^{exponent(of):.2f}" for of in (adds, moved, seconds[way])]
            rows.append(("grows" if way == EVERYTHING else "", way, grows[0], "", grows[1], "", grows[2], ""))
    return draw(("T", "made again", "million mul-adds", "", "MiB moved", "", "ms", ""), rows)


def json_lines(library: Library, way: str, run: Run, width: int, heads: int) -> str:
    """What docs/decode.md asks a program for: a line for each length."""
    lines = []
    for n in sorted(run.seconds):
        c = cost(way, n, width, heads)
        counts = {"multiply_adds": c.multiply_adds, "moved": c.moved, "held": run.held[n]}
        point = {"port": library.port, "way": way, "tokens": n, "seconds": run.seconds[n]}
        lines.append(json.dumps(point | counts))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rosetta_experiments.decode",
        description="Generates tokens with one layer of attention: recomputing everything, keys and values, or with a"
        " KV cache; counts multiply-adds and bytes, and measures the time.",
    )
    parser.add_argument("--n", type=sizes, help=f"tokens to generate (default: {LENGTHS}, a minute or more)")
    parser.add_argument("--quick", action="store_true", help=f"smaller: {QUICK}")
    parser.add_argument("--width", type=int, default=128, help="of a token (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=8, help="that share the width (default: %(default)s)")
    parser.add_argument(
        "--repeats", type=int, help="runs of which the fastest counts (default: 1, of the article 20)"
    )
    parser.add_argument("--torch", action="store_true", help="the layer in PyTorch, not in NumPy")
    parser.add_argument(
        "--json", action="store_true", help="a line of JSON for each way and length, no table"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the times, as SVG")
    parser.add_argument(
        "--article",
        action="store_true",
        help="instead: rerun a much-read article's experiment, and say what it times",
    )
    chosen = parser.parse_args(arguments)
    repeats = (20 if chosen.article else 1) if chosen.repeats is None else chosen.repeats
    if min(chosen.width, chosen.heads, repeats) < 1 or chosen.width % chosen.heads:
        parser.error("expected width, heads and repeats >= 1, and a width that the heads can share")
    if chosen.article:
        if chosen.json or chosen.torch:
            parser.error("--article: expected neither --json nor --torch beside it, since it is in NumPy")
        print(article_text(repeats))
        return
    lengths = sorted(set(chosen.n or sizes(QUICK if chosen.quick else LENGTHS)))
    try:
        library = torch_library() if chosen.torch else NUMPY
    except ModuleNotFoundError:
        parser.error("--torch: expected PyTorch to be installed")
    seconds: dict[str, dict[int, float]] = {}
    held = 0
    try:
        for way, run in measure(chosen.width, chosen.heads, lengths, repeats, library):
            seconds[way], held = run.seconds, run.held[lengths[-1]]
            if chosen.json:
                print(json_lines(library, way, run, chosen.width, chosen.heads), flush=True)
    except WrongOutput as wrong:
        sys.exit(f"decode: {wrong}")
    if not chosen.json:
        layer = f"One layer, width {chosen.width}, {chosen.heads} heads, {library.title}, float32"
        print(f"{layer}; x n: n times the cache's.\n")
        print(cost_table(lengths, chosen.width, chosen.heads, seconds))
        print(
            f"\nThe cache holds {held / 2**20:,.2f} MiB after {lengths[-1]} tokens; the other ways hold nothing."
        )
    if chosen.plot is not None:
        lines = [Line(way, {n: s * 1e3 for n, s in seconds[way].items()}) for way in WAYS]
        try:
            chosen.plot.write_text(log_log(lines, "Tokens generated", "milliseconds"), encoding="utf-8")
        except OSError as error:
            parser.error(f"--plot: {chosen.plot}: {error.strerror}")
        if not chosen.json:
            print(f"Drawn: {chosen.plot}")


def _times(ratio: float) -> str:
    return f"x {ratio:,.1f}" if ratio != 1 else ""


if __name__ == "__main__":
    one_thread.start_anew("rosetta_experiments.decode", sys.argv[1:])
    main()
