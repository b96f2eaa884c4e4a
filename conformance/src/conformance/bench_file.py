"""What a benchmark leaves behind: JSON Lines with a header, raw samples, one line per cell, and a footer.

A cell is one case on one variant of one port. The numbers people look at are computed from the raw samples
when the file is read, so that another way of looking at them needs no new measurement.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from .bench_stats import BenchRow, differ, find_warnings, ratios, summarise
from .limits import Limits, best_of
from .machine import Machine
from .outcome import Outcome
from .report import InvalidReport, PortRecord
from .repository import ROOT

FORMAT = 2
DEFAULT_BENCH = ROOT / "site/bench.jsonl"


class BenchHeader(msgspec.Struct, frozen=True, tag_field="kind", tag="header"):
    """Where, when, and how. reference: the port whose first variant the others are compared with.

    no_limits: why those of the machine were not measured. threads: of every cell; more_threads: what some of them were
    timed with besides.
    """

    format: int
    version: str
    date: str
    commit: str
    machine: Machine
    mode: str
    rounds: int
    threads: int
    reference: str
    ports: list[PortRecord]
    narrowing: dict[str, str]
    no_limits: str = ""
    more_threads: list[int] = []


class Sample(msgspec.Struct, frozen=True, tag_field="kind", tag="sample"):
    """One bench request in one round. again: the reference measured for the second time, for the noise floor.

    place: its place in the order of the round. samples_ns: per evaluation. wall_s and cpu_s: of the whole
    request, as the driver saw them. cpu_ns: processor time of the samples alone, as the port saw it; 0 where it does
    not say. dropped: measured again, because wall and processor time differed, and not counted.
    threads: that the port was granted; 0 in an older file: what its header says.
    """

    case: str
    port: str
    variant: str
    round: int
    place: int
    again: bool
    evals: int
    samples_ns: list[float]
    wall_s: float
    cpu_s: float
    cpu_ns: float = 0.0
    dropped: bool = False
    threads: int = 0

    @property
    def apart(self) -> float:
        """By which fraction processor and wall time differ: by the port's own clocks, else by the driver's."""
        if self.cpu_ns:
            return differ(self.cpu_ns, self.evals * sum(self.samples_ns), self.threads)
        return differ(self.cpu_s, self.wall_s, self.threads)


class Cell(msgspec.Struct, frozen=True, tag_field="kind", tag="cell"):
    """What was found out about a cell before it was timed. note: what was left out of its timing, and why."""

    case: str
    op: str
    port: str
    variant: str
    first: bool
    outcome: Outcome
    message: str = ""
    note: str = ""
    share: float = 0.0
    first_ns: float = 0.0
    peak_bytes: int = 0
    flops: int = 0
    bytes: int = 0
    threads: int = 0


class Memory(msgspec.Struct, frozen=True, tag_field="kind", tag="memory"):
    """What one call of sdpa took beyond what was there before: T = length, B = H = 1, D = 64, f32 (memory.py)."""

    port: str
    variant: str
    length: int
    bytes: int


class BenchFooter(msgspec.Struct, frozen=True, tag_field="kind", tag="footer"):
    """How it ended: ok when every cell that was asked gave a right result."""

    cells: int
    samples: int
    ok: bool
    problems: list[str]
    seconds: float


Line = BenchHeader | Limits | Sample | Cell | Memory | BenchFooter


class BenchReport(msgspec.Struct, frozen=True):
    """A finished benchmark. noise: for each case the A/A noise floor, as a fraction.

    limits: of the machine, where they were measured: the highest of each. threaded: the cells that were timed with more
    threads than the others, by how many; their gain is over the same rung with the fewest.
    """

    header: BenchHeader
    rows: list[BenchRow]
    noise: dict[str, float]
    footer: BenchFooter
    limits: Limits | None = None
    threaded: list[BenchRow] = []
    memory: list[Memory] = []

    def cases(self) -> list[str]:
        """The ids of the cases, in order."""
        return list(dict.fromkeys(row.case for row in self.rows))

    def warnings(self) -> list[str]:
        """What a reader of the numbers should know."""
        found = find_warnings(self.rows, self.header.threads)
        for threads in self.header.more_threads:
            found += find_warnings([row for row in self.threaded if row.threads == threads], threads)
        if self.header.no_limits:
            found.append(f"the limits of the machine were not measured: {self.header.no_limits}")
        return found

    def find(self, case: str, port: str, variant: str | None = None) -> BenchRow | None:
        """The row of a cell; without a variant that of the port's first one."""
        return next(
            (
                row
                for row in self.rows
                if (row.case, row.port) == (case, port)
                and (row.first if variant is None else row.variant == variant)
            ),
            None,
        )


def write_line(stream: BinaryIO, line: Line) -> None:
    """Appends a line and lets it reach the file."""
    stream.write(msgspec.json.encode(line) + b"\n")
    stream.flush()


def build_report(
    header: BenchHeader, lines: Sequence[Sample | Cell | Limits | Memory], footer: BenchFooter
) -> BenchReport:
    """The report of some lines."""
    samples = [line for line in lines if isinstance(line, Sample)]
    cells = [line for line in lines if isinstance(line, Cell)]
    limits = best_of([line for line in lines if isinstance(line, Limits)])
    base = (0, header.threads)
    rows, noise = summarise(
        [cell for cell in cells if cell.threads in base],
        [sample for sample in samples if sample.threads in base],
        header.reference,
        limits,
    )
    threaded = [row for threads in header.more_threads for row in _with(threads, rows, cells, samples)]
    memory = [line for line in lines if isinstance(line, Memory)]
    return BenchReport(header, rows, noise, footer, limits, threaded, memory)


def _with(
    threads: int, rows: Sequence[BenchRow], cells: Sequence[Cell], samples: Sequence[Sample]
) -> list[BenchRow]:
    """The rows of the cells that were timed with more threads, against the same with the fewest."""
    found, _ = summarise(
        [cell for cell in cells if cell.threads == threads],
        [sample for sample in samples if sample.threads == threads],
    )
    base = {(row.case, row.port, row.variant): row for row in rows}
    return [
        replace(row, threads=threads, gains=ratios(base[name], row))
        for row in found
        if (name := (row.case, row.port, row.variant)) in base
    ]


def read_bench(path: Path = DEFAULT_BENCH) -> BenchReport:
    """A finished benchmark. Raises InvalidReport when the file is missing, cut short, or holds no sample."""
    try:
        raw = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidReport(
            f"{path}: no benchmark: {error.strerror}; `conformance bench` makes one"
        ) from None
    decoder = msgspec.json.Decoder(Line)
    lines: list[Line] = []
    for number, text in enumerate(raw, 1):
        try:
            lines.append(decoder.decode(text))
        except msgspec.MsgspecError as error:
            raise InvalidReport(f"{path}:{number}: no line of a benchmark: {error}") from None
    if not lines or not isinstance(lines[0], BenchHeader):
        raise InvalidReport(f"{path}: expected a header in the first line")
    if not isinstance(lines[-1], BenchFooter):
        raise InvalidReport(f"{path}: expected a footer in the last line: the benchmark was cut short")
    middle = [line for line in lines[1:-1] if isinstance(line, Sample | Cell | Limits | Memory)]
    if not any(isinstance(line, Sample) for line in middle):
        raise InvalidReport(f"{path}: nothing was timed")
    return build_report(lines[0], middle, lines[-1])
