"""How much time a benchmark spends, and what it does not try."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .bench_file import Sample
from .questions import Question

LONG_NS = 1e7  # of a call from which on its rate says how long a larger one takes


@dataclass(frozen=True)
class Plan:
    """How much time is spent. seconds: on all cells together; each gets an equal part, within a limit.

    A cell that needs more than its part takes part in fewer rounds; one whose single evaluation takes longer
    than `longest_s` is not timed. Both are noted in the cell. repeats_s: what may be spent on measuring again where
    wall and processor time differ. limits_s: on each limit of the machine, before the cells and after.
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


QUICK = Plan("quick", 3, 5, 0.002, 0.1, 30, 1.2, 2.0, 60, 6, 0.15)
FULL = Plan("full", 11, 10, 0.01, 0.5, 720, 20.0, 5.0, 300, 90, 0.5)


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

    def predict(self, port: str, question: Question) -> float:
        """Seconds that an evaluation takes at least; 0 where nothing is known."""
        rate = self.best.get((question.case.op, port, question.variant), 0.0)
        return question.case.flops / rate / 1e9 if rate else 0.0
