"""The measuring itself: one case, all its cells, warm-up and check first, then interleaved rounds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]

from .bench_file import Cell, Sample
from .case import Case
from .fixtures import LoadedSuite
from .judge import judge_answer
from .outcome import Outcome
from .questions import Question, find_unclaimed
from .run import Asker, read_case
from .session import PortFault, Session

DTYPE = "f32"
CHECK_WARM_UP = 1
LEAST_EVALUATIONS = 3  # of a request: the first, one to choose how many make a sample, and one sample
MOST_WARM_UP = 500


@dataclass(frozen=True)
class Plan:
    """How much time is spent. seconds: on all cells together; each gets an equal part, within a limit.

    A cell that needs more than its part takes part in fewer rounds; one whose single evaluation takes longer
    than `longest_s` is not timed. Both are noted in the cell.
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


QUICK = Plan("quick", 3, 5, 0.002, 0.1, 40, 1.2, 2.0, 60)
FULL = Plan("full", 11, 10, 0.01, 0.5, 900, 20.0, 30.0, 300)


@dataclass
class Entrant:
    """A cell on its way through the rounds. rounds: how many it takes part in; request: what each sends."""

    session: Session
    question: Question
    cell: Cell
    rounds: int = 0
    request: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """PORT:VARIANT."""
        return f"{self.cell.port}:{self.cell.variant}"

    def timed_in(self, number: int) -> bool:
        """Whether it takes part in that round."""
        return self.cell.outcome == "pass" and number < self.rounds


def list_cells(session: Session, suite: LoadedSuite, case: Case) -> list[Question]:
    """The variants of a port that can be timed on a case. A port that does not claim the case has none."""
    claims = session.claims
    if claims is None or DTYPE not in case.files or find_unclaimed(claims, case, DTYPE):
        return []
    variants = enumerate(claims.ops[case.op].variants)
    return [Question(suite, case, DTYPE, variant, index == 0) for index, variant in variants]


def check_cell(session: Session, question: Question, asker: Asker, plan: Plan, part_s: float) -> Entrant:
    """First call, judgement of the result, warm-up; then a plan for `part_s` seconds."""
    case = question.case
    request = asker.request(question, case.want)
    outputs = Path(request["outputs"])
    check = request | {"warmup": CHECK_WARM_UP, "samples": 1, "min_sample_ns": 0}
    try:
        answer = session.bench(check, plan.check_timeout_s)
        entrant = Entrant(session, question, _judge(session, question, answer, outputs))
        if entrant.cell.outcome != "pass":
            return entrant
        seconds = read_samples(answer)[0] / 1e9
        del request["outputs"]
        warm_up = min(MOST_WARM_UP, int(plan.warm_up_s / max(seconds, 1e-7)))
        if warm_up:
            warm = request | {"warmup": warm_up, "samples": 1, "min_sample_ns": 0}
            seconds = read_samples(session.bench(warm, plan.check_timeout_s))[0] / 1e9
    except PortFault as fault:
        return Entrant(session, question, _cell(session, question, fault.outcome, str(fault)))
    except BadTimes as bad:
        return Entrant(session, question, _cell(session, question, "fail", str(bad)))
    finally:
        outputs.unlink(missing_ok=True)
    entrant.request = request
    return plan_rounds(entrant, seconds, plan, part_s)


def plan_rounds(entrant: Entrant, seconds: float, plan: Plan, part_s: float) -> Entrant:
    """Chooses samples and rounds so that the cell stays within its part, and notes what that cost."""
    if seconds > plan.longest_s:
        note = (
            f"not timed: an evaluation takes {seconds:.1f} s, the limit is {plan.longest_s:g} s ({plan.mode})"
        )
        entrant.cell = msgspec.structs.replace(entrant.cell, note=note)
        return entrant
    sample_s = max(seconds, plan.min_sample_s)
    # The first, a warm-up, the search for the number of evaluations.
    overhead_s = 2 * seconds + 2 * plan.min_sample_s
    samples = int((part_s / plan.rounds - overhead_s) / sample_s)
    entrant.rounds = plan.rounds
    if samples < 1:
        least_s = LEAST_EVALUATIONS * sample_s
        entrant.rounds = max(1, min(plan.rounds, int(part_s / least_s)))
    if entrant.rounds < plan.rounds:
        note = f"timed in {entrant.rounds} of {plan.rounds} rounds: one evaluation takes {seconds:.2f} s"
        entrant.cell = msgspec.structs.replace(entrant.cell, note=note)
    entrant.request |= {
        "warmup": 1 if samples >= 1 else 0,
        "samples": max(1, min(samples, plan.samples)),
        "min_sample_ns": int(plan.min_sample_s * 1e9),
    }
    return entrant


def time_case(entrants: Sequence[Entrant], plan: Plan, reference: str) -> list[Sample]:
    """The samples of all rounds, those of the reference twice. A cell that fails leaves the rounds."""
    samples = []
    for number in range(plan.rounds):
        running = [entrant for entrant in entrants if entrant.timed_in(number)]
        for place, (entrant, again) in enumerate(order_round(running, number, reference)):
            if entrant.cell.outcome == "pass":
                sample = _time_once(entrant, plan, number, place, again)
                if sample is not None:
                    samples.append(sample)
    return samples


def order_round(entrants: Sequence[Entrant], number: int, reference: str) -> list[tuple[Entrant, bool]]:
    """The cells, each round from another one on, and the reference a second time far from its first."""
    if not entrants:
        return []
    shift = number % len(entrants)
    order = [(entrant, False) for entrant in [*entrants[shift:], *entrants[:shift]]]
    for place, (entrant, _) in enumerate(order):
        if entrant.cell.port == reference and entrant.cell.first:
            far = len(order) if place < len(order) / 2 else 0
            return [*order[:far], (entrant, True), *order[far:]]
    return order


class BadTimes(Exception):
    """An answer to bench without usable samples."""


def read_samples(answer: dict[str, Any]) -> list[float]:
    """The times of an answer to bench, in nanoseconds per evaluation. Raises BadTimes."""
    samples = answer.get("samples_ns")
    if answer.get("status") != "ok":
        raise BadTimes(f"answered {answer.get('status')}: {answer.get('message') or answer.get('feature')}")
    if not isinstance(samples, list) or not samples or not all(_is_time(x) for x in samples):
        raise BadTimes(f"samples_ns: expected a list of positive numbers, got {samples!r}")
    for name in ("first_ns", "evals"):
        if not _is_time(answer.get(name)):
            raise BadTimes(f"{name}: expected a positive number, got {answer.get(name)!r}")
    return [float(x) for x in samples]


def _is_time(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and x > 0


def _time_once(entrant: Entrant, plan: Plan, number: int, place: int, again: bool) -> Sample | None:
    started, before = time.monotonic(), _processor_seconds(entrant.session)
    try:
        answer = entrant.session.bench(entrant.request, plan.check_timeout_s)
        times = read_samples(answer)
    except PortFault as fault:
        entrant.cell = msgspec.structs.replace(entrant.cell, outcome=fault.outcome, message=str(fault))
        return None
    except BadTimes as bad:
        entrant.cell = msgspec.structs.replace(entrant.cell, outcome="fail", message=str(bad))
        return None
    return Sample(
        case=entrant.cell.case,
        port=entrant.cell.port,
        variant=entrant.cell.variant,
        round=number,
        place=place,
        again=again,
        evals=int(answer["evals"]),
        samples_ns=times,
        wall_s=round(time.monotonic() - started, 6),
        cpu_s=round(max(0.0, _processor_seconds(entrant.session) - before), 6),
    )


def _processor_seconds(session: Session) -> float:
    """What the port and its children have used so far."""
    try:
        process = psutil.Process(session.pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    except psutil.Error:
        return 0.0
    return float(sum(each.user + each.system for each in times))


def _judge(session: Session, question: Question, answer: dict[str, Any], outputs: Path) -> Cell:
    """What was timed must be right. A later variant may lack what the case needs."""
    if answer["status"] == "unsupported" and not question.first:
        return _cell(session, question, "unsupported", str(answer.get("feature", "")))
    inputs, expected = read_case(question)
    case = question.case
    if case.steps is not None:  # an answer to bench carries no step codes; the outputs tell
        answer = answer | {"steps": case.steps}
    judgement = judge_answer(case, DTYPE, answer, inputs, expected, outputs)
    if judgement.outcome != "pass":
        outcome: Outcome = "fail" if judgement.outcome == "unsupported" else judgement.outcome
        return _cell(session, question, outcome, judgement.message)
    read_samples(answer)
    return msgspec.structs.replace(
        _cell(session, question, "pass"),
        share=judgement.share,
        first_ns=float(answer["first_ns"]),
        peak_bytes=int(answer.get("peak_bytes") or 0),
    )


def _cell(session: Session, question: Question, outcome: Outcome, message: str = "") -> Cell:
    return Cell(
        case=question.case.id,
        op=question.case.op,
        port=session.port.name,
        variant=question.variant,
        first=question.first,
        outcome=outcome,
        message=message,
        flops=question.case.flops,
        bytes=question.case.bytes,
    )
