"""Whether a benchmark is slower than an older one, beyond the noise of both: for people who change a kernel.

What is compared is how many times as fast as the reference a cell is in its own round, so that a machine that is busier
today counts for nothing. The reference itself has only its times, which a busy machine lengthens: they are told, and
fail nothing.
"""

from dataclasses import dataclass, field

from rich.console import Console

from .bench_file import BenchReport
from .bench_stats import BenchRow
from .errors import UsageError


@dataclass(frozen=True)
class Change:
    """A cell that became slower (factor above 1) or faster, and by which factor both noise floors together reach."""

    case: str
    port: str
    variant: str
    factor: float
    noise: float

    def __str__(self) -> str:
        how, factor = ("slower", self.factor) if self.factor > 1 else ("faster", 1 / self.factor)
        return f"{self.port}:{self.variant} {self.case}: {factor:.2f} times {how} (noise {self.noise:.2f})"


@dataclass
class Comparison:
    """What became of the cells of a baseline. gone: timed there and not here, with what is known of why.

    compared: how many cells both have. notes: what a reader should know.
    """

    slower: list[Change] = field(default_factory=list)
    faster: list[Change] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compared: int = 0

    @property
    def ok(self) -> bool:
        """Nothing is slower, and nothing went missing."""
        return not (self.slower or self.gone)


def compare_benches(before: BenchReport, now: BenchReport) -> Comparison:
    """The cells of `before` in `now`. Raises UsageError when the two do not have anything to be compared by."""
    was, is_ = before.header, now.header
    if was.reference != is_.reference:
        raise UsageError(f"the baseline is relative to {was.reference}, this benchmark to {is_.reference}")
    if was.threads != is_.threads:
        raise UsageError(f"the baseline was timed with {was.threads} threads, this with {is_.threads}")
    found = Comparison()
    if was.machine.cpu != is_.machine.cpu:
        found.notes.append(
            f"the baseline is of another machine: {was.machine.cpu}, this is {is_.machine.cpu}"
        )
    asked = {(row.case, row.port) for row in now.rows}  # what was narrowed away is not missing
    for row in before.rows:
        if row.rounds and (row.case, row.port) in asked:
            _compare_cell(found, before, now, row)
    if not found.compared and not found.gone:
        raise UsageError("the baseline has no cell in common with this benchmark")
    return found


def _compare_cell(found: Comparison, before: BenchReport, now: BenchReport, old: BenchRow) -> None:
    new = now.find(old.case, old.port, old.variant)
    if new is None or not new.rounds:
        why = (new.message or new.note or new.outcome) if new else "not asked"
        found.gone.append(f"{old.port}:{old.variant} {old.case}: {why}")
        return
    if not old.speed or not new.speed:
        found.notes.append(f"{old.port}:{old.variant} {old.case} has no reference and is not compared")
        return
    found.compared += 1
    noise = (1 + before.noise.get(old.case, 0.0)) * (1 + now.noise.get(old.case, 0.0))
    if old.port == before.header.reference and old.first:
        factor = new.min_ns / old.min_ns
        if max(factor, 1 / factor) > noise:
            found.notes.append(
                f"the reference {old.port}:{old.variant} took {factor:.2f} times as long in {old.case}"
            )
        return
    change = Change(old.case, old.port, old.variant, old.speed / new.speed, noise)
    if change.factor > noise and new.speed_high < old.speed_low:
        found.slower.append(change)
    elif 1 / change.factor > noise and new.speed_low > old.speed_high:
        found.faster.append(change)


def show_comparison(found: Comparison, console: Console) -> None:
    """Each cell that changed, the worst first, and a sentence at the end."""
    for change in sorted(found.slower, key=lambda change: -change.factor):
        _say(console, f"slower: {change}")
    for line in found.gone:
        _say(console, f"gone: {line}")
    for change in sorted(found.faster, key=lambda change: change.factor):
        _say(console, f"faster: {change}")
    for note in found.notes:
        _say(console, f"note: {note}")
    _say(
        console,
        f"against the baseline: of {found.compared} cells {len(found.slower)} slower and {len(found.faster)} faster"
        f" beyond noise, {len(found.gone)} gone",
    )


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
