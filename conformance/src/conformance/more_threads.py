"""A variant `threads` gives the same bits on any number of threads: each case is asked with one, three and two.

All other questions are asked on one thread, where nothing that goes wrong in sharing the work can be seen.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from .fixtures import LoadedSuite
from .metamorphic import DTYPE, OP, SUITE
from .outcome import Judgement, Result
from .questions import Narrowing, Question, find_unclaimed
from .run import Asker
from .session import PROTOCOL, PortFault, Session
from .tensors import read_tensors

VARIANT, NAME = "threads", "more-threads"
MORE = (3, 2)  # the most first: what a process cannot have later, it gets at its start
GIVES = ("output", "lse")

Answer = dict[str, bytes] | Judgement  # the tensors, or why there are none


def check_threads(session: Session, suites: Sequence[LoadedSuite], narrowing: Narrowing) -> list[Result]:
    """A result for each case of our own that the variant answers on one thread. The session stays usable."""
    questions = list(_list_questions(session, suites, narrowing))
    if not questions:
        return []
    started = time.monotonic()
    refusal = _grant(session, 1)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        alone = _ask_all(session, 1, questions, Path(folder))
        port, timeouts, root = session.port, session.timeouts, session.root
        with Session(port, threads=max(MORE), timeouts=timeouts, root=root) as together:
            shared = {threads: _ask_all(together, threads, questions, Path(folder)) for threads in MORE}
    judged = [
        (
            question,
            refusal or _compare(alone[n], {threads: answers[n] for threads, answers in shared.items()}),
        )
        for n, question in enumerate(questions)
        if refusal or not isinstance(alone[n], Judgement)  # else the run itself says what is wrong with it
    ]
    seconds = round((time.monotonic() - started) / max(1, len(judged)), 6)
    return [
        Result(
            port=session.port.name,
            suite=SUITE,
            case=f"{SUITE}/{NAME}/{question.case.id.removeprefix(f'{OP}/')}",
            dtype=DTYPE,
            variant=VARIANT,
            judgement=judgement,
            seconds=seconds,
            first=False,
        )
        for question, judgement in judged
    ]


def _list_questions(
    session: Session, suites: Sequence[LoadedSuite], narrowing: Narrowing
) -> Iterator[Question]:
    claims = session.claims
    if claims is None or OP not in claims.ops or VARIANT not in claims.ops[OP].variants:
        return
    if VARIANT not in (narrowing.variants or [VARIANT]) or DTYPE not in (narrowing.dtypes or [DTYPE]):
        return
    for suite in suites:
        for case in suite.suite.cases:
            ours = case.op == OP and case.error is None and case.published is None
            asked = ours and narrowing.takes(case) and DTYPE in case.files
            if asked and not find_unclaimed(claims, case, DTYPE):
                want = [name for name in case.want if name in GIVES]
                yield Question(suite, msgspec.structs.replace(case, want=want), DTYPE, VARIANT, first=False)


def _ask_all(session: Session, threads: int, questions: Sequence[Question], folder: Path) -> list[Answer]:
    """Every answer on so many threads."""
    refusal = _grant(session, threads)
    if refusal is not None:
        return [refusal] * len(questions)
    place = folder / str(threads)
    place.mkdir()
    asker = Asker(session, place)
    return [_ask(session, asker.request(question, question.case.want)) for question in questions]


def _grant(session: Session, threads: int) -> Judgement | None:
    """Lets the port use so many threads; what is wrong if it does not."""
    request = {"cmd": "start", "protocol": PROTOCOL, "threads": threads}
    try:
        in_force = session.probe(msgspec.json.encode(request)).get("threads")
    except PortFault as fault:
        return Judgement(fault.outcome, str(fault))
    if in_force == threads:
        return None
    return Judgement("fail", f"expected as many threads in force as were granted, got {in_force}")


def _ask(session: Session, request: dict[str, object]) -> Answer:
    try:
        answer = session.run(request)
        if answer["status"] != "ok":
            return Judgement("fail", str(answer.get("message") or answer.get("feature")))
        path = Path(str(request["outputs"]))
        tensors = read_tensors(path)
        path.unlink()
    except PortFault as fault:
        return Judgement(fault.outcome, str(fault))
    except (OSError, ValueError) as error:
        return Judgement("fail", f"no output to compare: {type(error).__name__}: {error}")
    return {name: x.tobytes() for name, x in tensors.items()}


def _compare(one: Answer, more: dict[int, Answer]) -> Judgement:
    """Whether the answers on more threads are the bits of the one on one thread."""
    for threads, answer in more.items():
        if isinstance(answer, Judgement):
            return msgspec.structs.replace(answer, message=f"on {threads} threads: {answer.message}")
        if answer != one:
            return Judgement("fail", f"other bits on {threads} threads than on one")
    return Judgement("pass")
