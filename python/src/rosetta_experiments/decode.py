"""What a KV cache saves: one layer of multi-head attention generates T tokens in three ways, counted and timed.

Over T steps recomputing everything grows as T³ in the end, recomputing keys and values as T², and the cache as T for as
long as T is well below the width, then as T² too. The measured exponents are lower at first: a call takes its time
however little there is to do. decode_ways has the three ways and their formulas.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rosetta_attention import MultiHeadAttention

from . import one_thread
from .decode_article import article_text
from .decode_ways import CACHE, EVERYTHING, NUMBER, WAYS, cost, generate, random_layer
from .plot import Line, log_log
from .table import draw, sizes

LENGTHS, QUICK = "64,128,256,512,1024", "16,32,64,128"


def measure(
    layer: MultiHeadAttention, lengths: Sequence[int], repeats: int, seed: int = 0
) -> dict[str, dict[int, float]]:
    """Seconds of each way to each length: the least of `repeats`, since noise only ever adds."""
    width = layer.w_q.shape[1]
    first = np.random.default_rng(seed).standard_normal((1, 1, width)).astype(layer.w_q.dtype)
    found: dict[str, dict[int, float]] = {}
    for way in WAYS:
        generate(way, layer, first, [min(4, min(lengths))])  # loads and warms up
        runs = [generate(way, layer, first, lengths).seconds for _ in range(repeats)]
        found[way] = {n: min(run[n] for run in runs) for n in lengths}
    return found


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
        print(article_text(repeats))
        return
    lengths = sorted(set(chosen.n or sizes(QUICK if chosen.quick else LENGTHS)))
    seconds = measure(random_layer(chosen.width, chosen.heads), lengths, repeats)
    print(
        f"One layer, width {chosen.width}, {chosen.heads} heads, NumPy, float32; x n: n times the cache's.\n"
    )
    print(cost_table(lengths, chosen.width, chosen.heads, seconds))
    held = 2 * lengths[-1] * chosen.width * NUMBER
    print(
        f"\nThe cache holds {held / 2**20:,.2f} MiB after {lengths[-1]} tokens; the other ways hold nothing."
    )
    if chosen.plot is not None:
        lines = [Line(way, {n: s * 1e3 for n, s in seconds[way].items()}) for way in WAYS]
        try:
            chosen.plot.write_text(log_log(lines, "Tokens generated", "milliseconds"), encoding="utf-8")
        except OSError as error:
            parser.error(f"--plot: {chosen.plot}: {error.strerror}")
        print(f"Drawn: {chosen.plot}")


def _times(ratio: float) -> str:
    return f"x {ratio:,.1f}" if ratio != 1 else ""


if __name__ == "__main__":
    one_thread.start_anew("rosetta_experiments.decode", sys.argv[1:])
    main()
