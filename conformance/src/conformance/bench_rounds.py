"""The measuring itself: all cells of a case or a few, warm-up and check first, then interleaved rounds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from .bench_answers import MOST_GFLOPS, BadTimes, check_believable, read_samples
from .bench_file import Cell, Sample
from .bench_plan import Budget, Plan
from .bench_stats import DISTURBED
from .case import Case
from .cases.bench_caches import is_long, judged
from .cpu_time import processor_seconds
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
MOST_REPEATS = 2  # of one request
THREADED = ("threads", "fused", "folded", "compiled")  # the rungs that use more threads when they are granted
LEAST_THREADED_FLOPS = 10**7  # below, starting a second thread takes as long as the work


@dataclass
class Entrant:
    """A cell on its way through the rounds. rounds: how many it takes part in; request: what each sends.

    outputs: where the result of the last round is written, to be judged like the first.
    """

    session: Session
    question: Question
    cell: Cell
    rounds: int = 0
    request: dict[str, Any] = field(default_factory=dict)
    outputs: Path | None = None

    @property
    def name(self) -> str:
        """PORT:VARIANT."""
        return f"{self.cell.port}:{self.cell.variant}"

    def timed_in(self, number: int) -> bool:
        """Whether it takes part in that round."""
        return self.cell.outcome == "pass" and number < self.rounds


def list_cells(session: Session, suite: LoadedSuite, case: Case) -> list[Question]:
    """The variants of a port that can be timed on a case. A port that does not claim the case has none.

    The readable ones are not asked about a long past, which they need much longer for than the quick ones.
    """
    claims = session.claims
    if claims is None or DTYPE not in case.files or find_unclaimed(claims, case, DTYPE):
        return []
    variants = enumerate(claims.ops[case.op].variants)
    found = [Question(suite, case, DTYPE, variant, index == 0) for index, variant in variants]
    return [question for question in found if not (question.first and is_long(case.id))]


def list_threaded(session: Session, suite: LoadedSuite, case: Case) -> list[Question]:
    """Those of them that more threads may help: made for it, or another library's, on a case that is worth it."""
    if case.op != "sdpa" or case.flops < LEAST_THREADED_FLOPS or session.claims is None:
        return []
    if session.claims.threads != session.threads:  # it has not as many, whatever was granted
        return []
    peer = session.port.kind == "peer"
    return [q for q in list_cells(session, suite, case) if peer or q.variant in THREADED]


def check_cell(
    session: Session, question: Question, asker: Asker, plan: Plan, part_s: float, needed: float = 0.0
) -> Entrant:
    """First call, judgement of the result, warm-up; then a plan for `part_s` seconds.

    needed: seconds of an evaluation as foretold; where that is too long nothing is asked.
    """
    case = question.case
    if needed > plan.longest_s:
        note = (
            f"not timed: an evaluation would take {needed:.1f} s by its rate in smaller ones,"
            f" the limit is {plan.longest_s:g} s ({plan.mode})"
        )
        return Entrant(
            session, question, msgspec.structs.replace(_cell(session, question, "pass"), note=note)
        )
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
    entrant.request, entrant.outputs = request, outputs
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


def time_cells(
    entrants: Sequence[Entrant], plan: Plan, reference: str, budget: Budget, most_gflops: float = MOST_GFLOPS
) -> list[Sample]:
    """The samples of all rounds, those of the reference twice. A cell that fails leaves the rounds.

    A request whose wall and processor time differ is made again while the budget lasts; the attempt in which they
    differ least counts, the others stay in the list as dropped. most_gflops: of a thread.
    """
    samples = []
    for number in range(plan.rounds):
        running = [entrant for entrant in entrants if entrant.timed_in(number)]
        for place, (entrant, again) in enumerate(order_round(running, number, reference)):
            if entrant.cell.outcome == "pass":
                most = most_gflops * max(1, entrant.cell.threads)
                samples += _time_until_calm(entrant, plan, (number, place, again), budget, most)
    return samples


def _time_until_calm(
    entrant: Entrant, plan: Plan, at: tuple[int, int, bool], budget: Budget, most_gflops: float
) -> list[Sample]:
    tried: list[Sample] = []
    while len(tried) <= MOST_REPEATS:
        begun = time.monotonic()
        sample = _time_once(entrant, plan, at, most_gflops)
        if tried:
            budget.seconds -= time.monotonic() - begun
        if sample is None:
            break
        tried.append(sample)
        if sample.apart <= DISTURBED or budget.seconds <= 0:
            break
    best = min(tried, key=lambda sample: sample.apart, default=None)
    return [sample if sample is best else msgspec.structs.replace(sample, dropped=True) for sample in tried]


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


def _time_once(entrant: Entrant, plan: Plan, at: tuple[int, int, bool], most_gflops: float) -> Sample | None:
    """One request. at: round, place, again. In its last round the cell's result is judged once more."""
    number, place, again = at
    judged = entrant.outputs if number == entrant.rounds - 1 else None
    request = entrant.request | ({"outputs": str(judged)} if judged else {})
    started, before = time.monotonic(), processor_seconds(entrant.session.pid)
    try:
        answer = entrant.session.bench(request, plan.check_timeout_s)
        wall = time.monotonic() - started
        cpu = processor_seconds(entrant.session.pid) - before
        times = read_samples(answer)
        check_believable(answer, wall, entrant.cell.flops, most_gflops)
        if judged:
            found = _judge(entrant.session, entrant.question, answer, judged)
            if found.outcome != "pass":
                entrant.cell = msgspec.structs.replace(
                    entrant.cell, outcome=found.outcome, message=f"in the last round: {found.message}"
                )
                return None
    except PortFault as fault:
        entrant.cell = msgspec.structs.replace(entrant.cell, outcome=fault.outcome, message=str(fault))
        return None
    except BadTimes as bad:
        entrant.cell = msgspec.structs.replace(entrant.cell, outcome="fail", message=str(bad))
        return None
    finally:
        if judged:
            judged.unlink(missing_ok=True)
    return Sample(
        case=entrant.cell.case,
        port=entrant.cell.port,
        variant=entrant.cell.variant,
        round=number,
        place=place,
        again=again,
        evals=int(answer["evals"]),
        samples_ns=times,
        wall_s=round(wall, 6),
        cpu_s=round(max(0.0, cpu), 6),
        cpu_ns=float(answer.get("cpu_ns") or 0),
        threads=entrant.cell.threads,
    )


def _judge(session: Session, question: Question, answer: dict[str, Any], outputs: Path) -> Cell:
    """What was timed must be right. A later variant may lack what the case needs."""
    if answer["status"] == "unsupported" and not question.first:
        return _cell(session, question, "unsupported", str(answer.get("feature", "")))
    inputs, expected = read_case(question)
    case = question.case
    if is_long(case.id):
        case = msgspec.structs.replace(case, config=judged(case.config), steps=["ok", "ok"])
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
        threads=session.threads,
    )
