"""How many of some results passed, failed or were unsupported, and how much of their bounds they used.

The terminal and the pages count and write these in the same way.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .bench_file import BenchReport
from .known_failures import BAD
from .outcome import Result


@dataclass(frozen=True)
class Tally:
    """The sums over some results. share: the largest fraction of its bound that one used; worst: its case."""

    passed: int = 0
    failed: int = 0
    unsupported: int = 0
    share: float = 0.0
    worst: str = ""

    @property
    def asked(self) -> int:
        """How many questions were put to the port."""
        return self.passed + self.failed

    @property
    def measured(self) -> bool:
        """Whether there is an error to speak of: where nothing but crashes came, a share of 0 says nothing."""
        return self.passed > 0 or self.share != 0

    @property
    def empty(self) -> bool:
        """Whether there was nothing to count."""
        return not (self.asked or self.unsupported)


def tally(results: Iterable[Result]) -> Tally:
    """The sums. Error, crash and timeout count as failed: something else than an answer came."""
    passed = failed = unsupported = 0
    share, worst = 0.0, ""
    for result in results:
        outcome = result.judgement.outcome
        passed += outcome == "pass"
        failed += outcome in BAD
        unsupported += outcome == "unsupported"
        used = result.judgement.share
        if used > share or (math.isnan(used) and not math.isnan(share)):
            share, worst = used, result.case
    return Tally(passed, failed, unsupported, share, worst)


def list_variants(bench: BenchReport) -> list[tuple[str, str, bool]]:
    """Port, variant, and whether it is the port's first: in the order of the ports, each with its variants."""
    order = {port.name: n for n, port in enumerate(bench.header.ports)}
    names = dict.fromkeys((row.port, row.variant, row.first) for row in bench.rows)
    return sorted(names, key=lambda name: order.get(name[0], len(order)))


def shorten(message: str) -> str:
    """The first line of a message and the last, where the end of a log says what went wrong."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    return " … ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))


def show_share(share: float) -> str:
    """A fraction of a bound in at most 7 characters: `exact`, `34 %`, `3.1×`, `2e+05×`."""
    if math.isnan(share):
        return "NaN"
    if share == 0:
        return "exact"
    if share <= 1:
        return "< 1 %" if share < 0.01 else f"{100 * share:.0f} %"
    if math.isinf(share):
        return "∞"
    return f"{share:.1f}×" if share < 100 else f"{share:.0f}×" if share < 10_000 else f"{share:.0e}×"


def show_ratio(ratio: float, noise: float = 0.0) -> str:
    """A time relative to another in at most 6 characters; within the noise floor it is no difference."""
    if not math.isfinite(ratio) or ratio <= 0:
        return "?"
    if abs(math.log(ratio)) <= math.log1p(max(noise, 0.0)):
        return "≈"
    if ratio < 0.1:
        return f"{ratio:.3f}×" if ratio >= 0.001 else f"{ratio:.0e}×"
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.1f}×" if ratio < 100 else f"{ratio:.0f}×"


def show_ns(ns: float) -> str:
    """A time in the unit that fits it."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= size:
            return f"{three_digits(ns / size)} {unit}"
    return f"{three_digits(ns)} ns"


def three_digits(x: float) -> str:
    """A number with three digits and no exponent."""
    return f"{x:.0f}" if x >= 99.95 else f"{x:.1f}" if x >= 9.995 else f"{x:.2f}"


def show_cosine(x: float) -> str:
    """Two digits without the zero in front, so that a cell stays small."""
    text = f"{x:.2f}".replace("-0.00", "0.00")
    return text if x > 0.995 else text.replace("0.", ".", 1)
