"""A benchmark in two divisions: the same algorithm in every language, and the best that each has.

The first says what a language costs: a readable text against a readable text, tiles against tiles. The second says
what a user gets: the fastest rung of every port and peer, whatever it is made of.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .bench_file import BenchReport
from .bench_stats import BenchRow, geometric_mean
from .known_failures import BAD

# Rungs that are the same algorithm wherever they have the same name; others are each language's own.
ALGORITHMS = ("naive", "blocked", "flash", "split")
BEST = "best of each"


@dataclass(frozen=True)
class Entry:
    """What a port has in a case. ratio: times as fast as the division's reference; noise: below it, no difference."""

    row: BenchRow
    ratio: float
    noise: float


@dataclass(frozen=True)
class Division:
    """A column for each port, a row for each case; None where a port has nothing that was timed.

    reference: the port that has the ratio 1. failed: (case, port) of a rung of this division that gave a wrong result,
    or none.
    """

    title: str
    reference: str
    ports: list[str]
    rows: list[tuple[str, list[Entry | None]]]
    failed: frozenset[tuple[str, str]] = frozenset()

    def mean(self, port: str) -> float:
        """The geometric mean of a port's ratios, over the cases that it and the reference have; 0 where none."""
        at = self.ports.index(port)
        return geometric_mean(entry.ratio for _, entries in self.rows if (entry := entries[at]) is not None)


def divide(bench: BenchReport) -> list[Division]:
    """A division for each algorithm that two ports have, and last the best of each."""
    own = [port.name for port in bench.header.ports if port.kind == "port"]
    everyone = [port.name for port in bench.header.ports]
    found = [_same_algorithm(bench, name, own) for name in ALGORITHMS]
    found.append(_divide(bench, BEST, _best_rows(bench), everyone))
    return [division for division in found if len(division.ports) > 1]


def _same_algorithm(bench: BenchReport, name: str, ports: Sequence[str]) -> Division:
    rows = [row for row in bench.rows if row.variant == name and row.port in ports]
    return _divide(bench, f"same algorithm: {name}", rows, ports)


def _best_rows(bench: BenchReport) -> list[BenchRow]:
    """The fastest variant of each port in each case, and those that failed."""
    best: dict[tuple[str, str], BenchRow] = {}
    for row in bench.rows:
        known = best.get((row.case, row.port))
        if row.speed > 0 and (known is None or row.speed > known.speed):
            best[row.case, row.port] = row
    return [*best.values(), *(row for row in bench.rows if row.outcome in BAD)]


def _divide(bench: BenchReport, title: str, rows: Sequence[BenchRow], ports: Sequence[str]) -> Division:
    """All relative to the first port that is in the division."""
    by_name = {(row.case, row.port): row for row in rows if row.speed > 0}
    failed = frozenset((row.case, row.port) for row in rows if row.outcome in BAD)
    present = [port for port in ports if any(row.port == port for row in rows)]
    reference = bench.header.reference if bench.header.reference in present else (present or [""])[0]
    table: list[tuple[str, list[Entry | None]]] = []
    for case in bench.cases():
        base = by_name.get((case, reference))
        if base is None:
            continue
        noise = bench.noise.get(case, 0.0)
        entries = []
        for port in present:
            row = by_name.get((case, port))
            entries.append(None if row is None else Entry(row, row.speed / base.speed, noise))
        table.append((case, entries))
    return Division(title, reference, present, table, failed)
