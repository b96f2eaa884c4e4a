"""The goals of speed, each a ratio within one round, and how far one report reaches them.

A cell's ratio is, in each round, the time of the fastest peer divided by that of the rung; of the rounds the median.
A rung that has no cell in a report has reached nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from .bench_file import BenchReport
from .bench_stats import BenchRow, geometric_mean, ratios
from .cases.bench_caches import is_long, past_and_kind

PREFILL = (
    "sdpa/prefill-256",
    *(f"grid/{name}" for name in ("prefill-512", "prefill-512-d80", "prefill-512-d96", "odd-1000", "ragged")),
    *(f"grid/{name}" for name in ("prefill-2048", "prefill-2048-d128")),
)
LONG_PREFILL = ("grid/prefill-2048", "grid/prefill-2048-d128")
CAUSAL = ("sdpa/causal-256", "grid/causal-512", "grid/causal-2048")
GROUPED = ("sdpa/decode-1024", "grid/decode-4096", "grid/decode-8x1024")
DECODE = (*GROUPED, "grid/decode-512")
BEYOND_L2 = ("grid/decode-4096", "grid/decode-8x1024")  # K and V are 32 and 64 MiB
SMALL = ("sdpa/small", "grid/keys-1", "grid/keys-17")
LARGE = ("grid/prefill-512", *LONG_PREFILL, "grid/causal-2048", *BEYOND_L2)
EVERY = (*PREFILL, *CAUSAL, *DECODE, *SMALL)

NATIVE = ("torch", "onnxruntime")
NATIVE_AND_RUST = (*NATIVE, "rten")

LimitName = Literal["multiply-adds", "four streams", "WASM multiply-adds"]


@dataclass(frozen=True)
class Share:
    """A part of what the machine can do that a rung shall reach in each of these cells."""

    of: LimitName
    least: float
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Goal:
    """What a rung shall reach. rungs, peers: `port` or `port:variant`; of several the fastest counts in each cell.

    `port:*` is every rung of a port but its first. mean: geometric, over the cells; least: in each, 0 where none is.
    """

    what: str
    rungs: tuple[str, ...]
    peers: tuple[str, ...]
    cases: tuple[str, ...]
    mean: float
    least: float = 0.0
    share: Share | None = None


GOALS = (
    Goal(
        "Rust `simd`, prefill", ("rust:simd",), NATIVE_AND_RUST, PREFILL, 1.3, 1.1,
        Share("multiply-adds", 0.90, LONG_PREFILL),
    ),
    Goal("Rust `simd`, causal", ("rust:simd",), NATIVE_AND_RUST, CAUSAL, 1.5, 1.3),
    Goal(
        "Rust `simd`, decode of grouped heads", ("rust:simd",), NATIVE_AND_RUST, GROUPED, 2.5, 1.5,
        Share("four streams", 0.70, BEYOND_L2),
    ),
    Goal("Rust `simd`, small shapes", ("rust:simd",), NATIVE_AND_RUST, SMALL, 3.0, 1.5),
    Goal(
        "Julia `simd`, prefill", ("julia:simd",), NATIVE, PREFILL, 1.15, 1.0,
        Share("multiply-adds", 0.85, LONG_PREFILL),
    ),
    Goal("Julia `simd`, decode", ("julia:simd",), NATIVE, DECODE, 1.5, 1.0),
    Goal(
        "TypeScript `wasm`, prefill", ("typescript:wasm",), ("onnxruntime-web",), PREFILL, 2.5, 1.5,
        Share("WASM multiply-adds", 0.75, LONG_PREFILL),
    ),
    Goal("TypeScript `wasm`, decode", ("typescript:wasm",), ("onnxruntime-web",), DECODE, 2.0, 1.5),
    Goal("TypeScript `blocked`", ("typescript:blocked",), ("tfjs",), EVERY, 5.0),
    Goal("TypeScript `blocked`", ("typescript:blocked",), ("typescript:naive",), EVERY, 2.0),
    Goal("NumPy, the best rung", ("python:*",), ("python:naive",), EVERY, 2.0, 1.0),
)  # fmt: skip

# Decode on a long past in a narrow format, relative to the same rung on f32.
CACHE_GOALS = {"f16": 1.7, "int8": 3.0, "int4": 4.5}
CACHE_PORT = "rust"
THREADS_GOAL = 1.8
MEMORY_LENGTH, MEMORY_GOAL = 32768, 0.01


@dataclass(frozen=True)
class Ratio:
    """One cell. low, high: over the rounds. rung, peer: which they were."""

    case: str
    ratio: float
    low: float
    high: float
    rung: str
    peer: str


@dataclass(frozen=True)
class Reached:
    """How far a goal is reached. missing: cells without a ratio. shares: of the limit, by case."""

    goal: Goal
    cells: list[Ratio]
    missing: list[str]
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The geometric mean of the ratios; 0 where there is none."""
        return geometric_mean(cell.ratio for cell in self.cells)

    @property
    def lowest(self) -> Ratio | None:
        """The cell with the lowest ratio."""
        return min(self.cells, key=lambda cell: cell.ratio, default=None)

    @property
    def lacking(self) -> list[str]:
        """What is not reached; nothing where all is."""
        found = [f"{len(self.missing)} of {len(self.goal.cases)} cells not timed"] if self.missing else []
        if self.cells and self.mean < self.goal.mean:
            found.append("mean")
        if self.cells and self.lowest is not None and self.lowest.ratio < self.goal.least:
            found.append("lowest cell")
        if self.goal.share is not None:
            if len(self.shares) < len(self.goal.share.cases):
                found.append("share unknown")
            elif min(self.shares.values()) < self.goal.share.least:
                found.append("share")
        return found


def reach(report: BenchReport, goals: Sequence[Goal] = GOALS) -> list[Reached]:
    """How far the report reaches each goal."""
    return [_reach(report, goal) for goal in goals]


def _reach(report: BenchReport, goal: Goal) -> Reached:
    cells, missing, shares = [], [], {}
    for case in goal.cases:
        own = fastest(report, case, goal.rungs)
        found = _ratio(case, own, choose(report, case, goal.peers))
        if found is None:
            missing.append(case.rpartition("/")[2])
        else:
            cells.append(found)
        if own is not None and goal.share is not None and case in goal.share.cases:
            share = share_of(report, own, goal.share.of)
            if share:
                shares[case] = share
    return Reached(goal, cells, missing, shares)


def share_of(report: BenchReport, row: BenchRow, limit: LimitName) -> float:
    """Of a limit of the machine; 0 where it was not measured."""
    if limit == "multiply-adds":
        return row.peak_share
    if limit == "four streams":
        return row.read_share
    wasm = report.limits.wasm_gflops if report.limits else 0.0
    return row.gflops / wasm if wasm else 0.0


def choose(report: BenchReport, case: str, names: Sequence[str]) -> list[BenchRow]:
    """The timed rows of a case that the names mean."""
    wanted = []
    for row in report.rows:
        if row.case != f"bench/{case}" or not row.rounds:
            continue
        others = not row.first and f"{row.port}:*" in names
        if row.port in names or f"{row.port}:{row.variant}" in names or others:
            wanted.append(row)
    return wanted


def fastest(report: BenchReport, case: str, names: Sequence[str]) -> BenchRow | None:
    """The one with the least time."""
    return min(choose(report, case, names), key=lambda row: row.min_ns, default=None)


def _ratio(case: str, own: BenchRow | None, peers: Sequence[BenchRow]) -> Ratio | None:
    if own is None:
        return None
    by_round = []
    for number, ns in own.by_round.items():
        theirs = [row.by_round[number] for row in peers if number in row.by_round]
        if theirs:
            by_round.append(min(theirs) / ns)
    if not by_round:
        return None
    best = min(peers, key=lambda row: row.min_ns)
    rung, peer = f"{own.port} {own.variant}", f"{best.port} {best.variant}"
    return Ratio(case, median(by_round), min(by_round), max(by_round), rung, peer)


@dataclass(frozen=True)
class LongRow:
    """One token over a past that a cache holds. ratios: times as fast as on f32, in each round that has both."""

    past: int
    kind: str
    row: BenchRow
    ratios: list[float]

    @property
    def ratio(self) -> float:
        """Their median; 0 without one."""
        return median(self.ratios) if self.ratios else 0.0


def long_rows(report: BenchReport) -> dict[tuple[str, str], list[LongRow]]:
    """By port and variant, in the order of the report."""
    found: dict[tuple[str, str], list[LongRow]] = {}
    for row in report.rows:
        if is_long(row.case) and row.rounds:
            base = report.find(row.case.rpartition("/")[0] + "/f32", row.port, row.variant)
            past, kind = past_and_kind(row.case)
            apart = ratios(base, row) if base is not None else []
            found.setdefault((row.port, row.variant), []).append(LongRow(past, kind, row, apart))
    return found


def thread_gains(report: BenchReport, threads: int = 2) -> dict[tuple[str, str], dict[str, float]]:
    """By port and variant, the median gain of each case that was timed with so many threads."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in report.threaded:
        if row.threads == threads and row.gains:
            name = row.case.removeprefix("bench/")
            found.setdefault((row.port, row.variant), {})[name] = median(row.gains)
    return found
