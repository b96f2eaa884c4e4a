"""From raw samples to the numbers people look at.

Noise makes a call slower and never faster, so the minimum is the robust estimate and the median the next.
Machines drift, so a cell is compared with the reference of its own round only; how far two measurements of
the *same* thing in one round are apart (A against A) is the noise floor, below which no difference is
claimed.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from .outcome import Outcome

if TYPE_CHECKING:
    from .bench_file import Cell, Sample
    from .limits import Limits

TOO_MANY_THREADS = 1.3  # processor seconds a second: more than one thread was at work
SHOWN = 3  # cells that a warning names
BUSY = 0.85  # processor seconds a second: the machine had other work to do
DISTURBED = (
    0.05  # wall and processor time further apart than this: something else ran, or more than one thread
)


class BenchRow(msgspec.Struct, frozen=True):
    """The numbers of one cell. Times are nanoseconds per evaluation; 0 where there is none.

    speed: how many times as fast as the reference, the median over the rounds; speed_low and speed_high: the
    lowest and the highest round. rounds: how many there were; 0 = not timed, and note or message says why.
    cpu: processor seconds per second of wall time. share: of the error bound, in the result that was checked.
    disturbed: rounds in which wall and processor time stayed apart; repeated: requests made again for it.
    peak_share, read_share: of the machine's multiply-add loop and of its four-stream read, at the minimum; 0 where
    unknown. by_round: the median time of each round. threads, gains: of a cell with more threads than the others, how
    many, and how many times as fast it is in each round as with the fewest.
    """

    case: str
    op: str
    port: str
    variant: str
    first: bool
    outcome: Outcome
    message: str
    note: str
    share: float
    first_ns: float
    min_ns: float
    median_ns: float
    speed: float
    speed_low: float
    speed_high: float
    rounds: int
    cpu: float
    peak_bytes: int
    flops: int
    bytes: int
    disturbed: int = 0
    repeated: int = 0
    peak_share: float = 0.0
    read_share: float = 0.0
    by_round: dict[int, float] = {}
    threads: int = 0
    gains: list[float] = []

    @property
    def gflops(self) -> float:
        """10^9 floating-point operations a second, at the minimum; 0 where unknown."""
        return self.flops / self.min_ns if self.min_ns else 0.0

    @property
    def gigabytes(self) -> float:
        """10^9 bytes of inputs and outputs a second, at the minimum; 0 where unknown."""
        return self.bytes / self.min_ns if self.min_ns else 0.0


def summarise(
    cells: "Sequence[Cell]",
    samples: "Sequence[Sample]",
    reference: str = "",
    limits: "Limits | None" = None,
) -> "tuple[list[BenchRow], dict[str, float]]":
    """A row for each cell, and the noise floor of each case. reference: the port compared with."""
    # One that turned out wrong in its last round has no times.
    right = {(cell.case, cell.port, cell.variant) for cell in cells if cell.outcome == "pass"}
    grouped: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    repeated: dict[tuple[str, str, str], int] = defaultdict(int)
    for sample in samples:
        name = sample.case, sample.port, sample.variant
        if name not in right:
            continue
        if sample.dropped:
            repeated[name] += 1
        else:
            grouped[name].append(sample)
    base = {
        cell.case: grouped[cell.case, cell.port, cell.variant]
        for cell in cells
        if cell.port == reference and cell.first
    }
    rows = []
    for cell in cells:
        name = cell.case, cell.port, cell.variant
        row = _summarise_cell(cell, grouped[name], base.get(cell.case, []))
        shares = (row.gflops / limits.fma_gflops, row.gigabytes / limits.read4_gbs) if limits else (0.0, 0.0)
        rows.append(
            msgspec.structs.replace(row, repeated=repeated[name], peak_share=shares[0], read_share=shares[1])
        )
    return rows, {case: noise_floor(timed) for case, timed in base.items()}


def geometric_mean(ratios: Iterable[float]) -> float:
    """Of positive numbers; 0 without one."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else 0.0


def ratios(slow: BenchRow, fast: BenchRow) -> list[float]:
    """How many times as fast one is as another, for each round that has both."""
    return [slow.by_round[r] / fast.by_round[r] for r in sorted(slow.by_round.keys() & fast.by_round.keys())]


def find_warnings(rows: Sequence[BenchRow], threads: int) -> list[str]:
    """What makes the numbers less than fair: more threads than were granted, or a machine that is busy."""
    timed = [row for row in rows if row.rounds]
    warnings = [
        f"{row.port}:{row.variant} {row.case}: used {row.cpu:.1f} processors, {threads} granted"
        for row in timed
        if row.cpu > TOO_MANY_THREADS * threads
    ]
    share = median(row.cpu for row in timed) if timed else 1.0
    if share < BUSY:
        warnings.append(
            f"the machine was busy: the ports got {share:.0%} of a processor while they were asked"
        )
    disturbed = [
        f"{row.port}:{row.variant} {row.case} {row.disturbed}/{row.rounds}" for row in timed if row.disturbed
    ]
    repeated = sum(row.repeated for row in timed)
    if disturbed or repeated:
        shown = ", ".join(disturbed[:SHOWN]) + (
            f" and {len(disturbed) - SHOWN} more" if disturbed[SHOWN:] else ""
        )
        warnings.append(
            f"wall and processor time were more than {DISTURBED:.0%} apart: {repeated} requests were made again,"
            f" {sum(row.disturbed for row in timed)} of {sum(row.rounds for row in timed)} rounds stayed so"
            f"{': ' if shown else ''}{shown}"
        )
    return warnings


def differ(cpu: float, wall: float, threads: int = 1) -> float:
    """By which fraction of the wall time the two are apart. Several threads may use so many times the wall time."""
    if wall <= 0:
        return 0.0
    return max(1 - cpu / wall, cpu / wall - max(1, threads), 0.0)


def noise_floor(reference: "Sequence[Sample]") -> float:
    """By which fraction two measurements of the reference in one round were apart, in three rounds of four."""
    first = {sample.round: median(sample.samples_ns) for sample in reference if not sample.again}
    second = {sample.round: median(sample.samples_ns) for sample in reference if sample.again}
    apart = sorted(abs(math.log(first[r] / second[r])) for r in first.keys() & second.keys())
    return math.expm1(apart[math.ceil(0.75 * len(apart)) - 1]) if apart else 0.0


def round_speeds(own: "Sequence[Sample]", reference: "Sequence[Sample]") -> list[float]:
    """How many times as fast as the reference, for each round that has both."""
    mine, theirs = _by_round(own), _by_round(reference)
    return [median(theirs[r]) / median(mine[r]) for r in sorted(mine.keys() & theirs.keys())]


def _by_round(samples: "Sequence[Sample]") -> dict[int, list[float]]:
    """All times of a round, both measurements of the reference together."""
    times: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        times[sample.round] += sample.samples_ns
    return times


def _summarise_cell(cell: "Cell", own: "Sequence[Sample]", reference: "Sequence[Sample]") -> BenchRow:
    times = [ns for sample in own for ns in sample.samples_ns]
    speeds = round_speeds(own, reference)
    wall = sum(sample.wall_s for sample in own)
    return BenchRow(
        case=cell.case,
        op=cell.op,
        port=cell.port,
        variant=cell.variant,
        first=cell.first,
        outcome=cell.outcome,
        message=cell.message,
        note=cell.note,
        share=cell.share,
        first_ns=cell.first_ns,
        min_ns=min(times, default=0.0),
        median_ns=median(times) if times else 0.0,
        speed=median(speeds) if speeds else 0.0,
        speed_low=min(speeds, default=0.0),
        speed_high=max(speeds, default=0.0),
        rounds=len({sample.round for sample in own}),
        cpu=sum(sample.cpu_s for sample in own) / wall if wall else 0.0,
        peak_bytes=cell.peak_bytes,
        flops=cell.flops,
        bytes=cell.bytes,
        by_round={number: median(times) for number, times in _by_round(own).items()},
        disturbed=len({sample.round for sample in own if sample.apart > DISTURBED}),
    )
