"""How much time a benchmark spends, and what it does not try."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .bench_file import Sample
from .questions import Question

LEAST_PART_S = 0.03
LONG_NS = 1e7  # of a call from which on its rate says how long a larger one takes


@dataclass(frozen=True)
class Plan:
    """How much time is spent. seconds: on all cells together; each gets an equal part, within a limit.

    A cell that needs more than its part takes part in fewer rounds; one whose single evaluation takes longer
    than `longest_s` is not timed. Both are noted in the cell. repeats_s: what may be spent on measuring again where
    wall and processor time differ. limits_s: on each limit of the machine, before the cells and after. most_s: from the
    start to the last cell; where checking and warming up have taken longer than was thought, the cells that are left
    get less. memory_lengths: of the calls of sdpa whose memory is measured, by the rungs without a table of scores.
    """

    mode: str
    rounds: int
    samples: int
    min_sample_s: float
    warm_up_s: float
    seconds: float
    most_per_cell_s: float
    longest_s: float
    check_timeout_s: float
    repeats_s: float
    limits_s: float
    most_s: float
    memory_lengths: tuple[int, ...] = ()

    def part(self, cells: int) -> float:
        """Seconds for each of so many cells, as long as nothing else takes longer than was thought."""
        return min(self.most_per_cell_s, self.seconds / max(1, cells))

    def part_left(self, cells: int, left: int, used_s: float) -> float:
        """The same, when so many of them are left after so many seconds."""
        share = (self.most_s - used_s) / max(1, left) - self.warm_up_s
        return max(LEAST_PART_S, min(self.part(cells), share))


# A call of a readable rung that is longer than longest_s is not waited for: its rate is known from the shorter ones.
QUICK = Plan("quick", 3, 5, 0.002, 0.05, 40, 1.2, 1.0, 60, 6, 0.15, 120)
FULL = Plan("full", 9, 10, 0.005, 0.15, 420, 20.0, 0.4, 300, 30, 0.5, 660, (32768,))
SCALING = replace(
    FULL, mode="scaling", rounds=5, seconds=240, repeats_s=20, longest_s=2.0, memory_lengths=(4096, 16384)
)
MOST_MEMORY_S = 8.0  # of the call whose memory is measured, by the rate of its rung


@dataclass
class Budget:
    """Seconds that are left for measuring again."""

    seconds: float


@dataclass
class Rates:
    """How fast each variant of a port has been in an op so far, to foretell what would take too long even to try.

    The highest rate counts, so that a call is only left out when the best that the rung has shown is too slow. Short
    calls say nothing: they are mostly overhead, which a longer one does not have more of.
    """

    best: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def learn(self, samples: Sequence[Sample], op: str, flops: int) -> None:
        """Takes in the samples of one case."""
        for sample in samples:
            if min(sample.samples_ns) < LONG_NS:
                continue
            name = op, sample.port, sample.variant
            self.best[name] = max(self.best.get(name, 0.0), flops / min(sample.samples_ns))

    def fastest(self, op: str, port: str, variant: str) -> float:
        """Operations a nanosecond; 0 where nothing is known."""
        return self.best.get((op, port, variant), 0.0)

    def predict(self, port: str, question: Question) -> float:
        """Seconds that an evaluation takes at least; 0 where nothing is known."""
        rate = self.fastest(question.case.op, port, question.variant)
        return question.case.flops / rate / 1e9 if rate else 0.0
