"""Asks one port every question that it claims to answer, and records how each ended."""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from .case import Case
from .errors import UsageError
from .fixtures import LoadedSuite
from .judge import first_different_step, judge_answer
from .outcome import Difference, Judgement, Result
from .ports import is_meant
from .questions import EVERYTHING, Narrowing, Question, list_features, list_questions
from .session import PortFault, Session, StrayOutput
from .steps import OUTPUTS
from .tensors import Tensors, read_tensors

Tick = Callable[[Result], None]
TENSORS_KEPT = 256


def run_port(
    session: Session,
    suites: Sequence[LoadedSuite],
    narrowing: Narrowing = EVERYTHING,
    tick: Tick = lambda result: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """A result for every question, in the order of list_questions; the session is stopped at the end."""
    results: list[Result] = []
    asked: int | None = None  # index of the result that the port's last answer gave
    with suppress(PortFault):  # a port that does not start is down for every question
        session.start()
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        asker = Asker(session, Path(folder))
        for question in list_questions(session.claims, suites, narrowing):
            if cancelled():
                return results
            if question.unclaimed:
                if not is_meant(session.port, question.case.op, list_features(question.case)):
                    continue
                judgement = Judgement("unsupported", f"{question.unclaimed} is not claimed")
                results.append(_record(session, question, judgement))
                continue
            started = time.monotonic()
            judgement, stray = asker.ask(question)
            if stray is not None and asked is not None:
                results[asked] = _replace_judgement(results[asked], stray)
            results.append(_record(session, question, judgement, time.monotonic() - started))
            asked = len(results) - 1
            tick(results[-1])
    try:
        session.stop()
    except PortFault as fault:
        if asked is not None:
            results[asked] = _replace_judgement(results[asked], fault)
    return results


def answer_question(session: Session, asker: "Asker", question: Question) -> Result:
    """One question on a session that was started, and how it ended."""
    started = time.monotonic()
    judgement, stray = asker.ask(question)
    if stray is not None:  # the port's answer before this one was followed by something
        judgement = Judgement(stray.outcome, str(stray))
    return _record(session, question, judgement, time.monotonic() - started)


class Asker:
    """Puts questions to a session. A port sees copies of the inputs, never an expected value."""

    def __init__(self, session: Session, folder: Path) -> None:
        self._session = session
        self._folder = folder
        self._inputs: tuple[Path, Path] | None = None
        self._count = 0
        self._not_written: dict[tuple[str, str], set[str]] = {}  # outputs that an (op, variant) said it lacks

    def ask(self, question: Question) -> tuple[Judgement, StrayOutput | None]:
        """The judgement, and a fault that came to light only now and is the request's before this one."""
        stray: StrayOutput | None = None
        while True:
            case = self._narrow_want(question)
            request = self.request(question, case.want)
            outputs = Path(request["outputs"])
            try:
                answer = self._session.run(request)
            except StrayOutput as fault:
                if stray is not None:
                    return Judgement(fault.outcome, str(fault)), stray
                stray = fault
                continue
            except PortFault as fault:
                return Judgement(fault.outcome, str(fault)), stray
            if not self._learn_unwritten(question, case, answer):
                break
        judgement = self._judge(question, case, answer, outputs)
        outputs.unlink(missing_ok=True)
        return judgement, stray

    def request(self, question: Question, want: Sequence[str]) -> dict[str, Any]:
        """A `run` request with a path for the answer that no earlier request has named."""
        self._count += 1
        request: dict[str, Any] = {
            "case": question.case.id,
            "op": question.case.op,
            "variant": question.variant,
            "config": question.case.config,
            "inputs": str(self._copy_inputs(question)),
            "outputs": str(self._folder / f"{self._count}.safetensors"),
        }
        if want:
            request["want"] = list(want)
        return request

    def _copy_inputs(self, question: Question) -> Path:
        """The inputs in a folder that holds nothing else; one copy serves all variants."""
        source = question.suite.path(question.case.files[question.dtype].inputs)
        if self._inputs is None or self._inputs[0] != source:
            if self._inputs is not None:
                self._inputs[1].unlink(missing_ok=True)
            copy = self._folder / f"inputs-{self._count}.safetensors"
            try:
                shutil.copyfile(source, copy)
            except FileNotFoundError:
                raise UsageError(
                    f"{source}: no such file; `conformance fixtures` makes what is missing"
                ) from None
            self._inputs = (source, copy)
        return self._inputs[1]

    def _narrow_want(self, question: Question) -> Case:
        """The case without the outputs that a faster variant has said it does not write."""
        case = question.case
        lacking = self._not_written.get((case.op, question.variant))
        if not lacking or not case.want:
            return case
        return msgspec.structs.replace(case, want=[name for name in case.want if name not in lacking])

    def _learn_unwritten(self, question: Question, case: Case, answer: dict[str, Any]) -> bool:
        """Whether a later variant lacks one of the wanted outputs and can be asked for the others."""
        if question.first or answer["status"] != "unsupported":
            return False
        name = str(answer.get("feature", "")).removeprefix("want.")
        if name not in case.want or len(case.want) == 1:
            return False
        self._not_written.setdefault((case.op, question.variant), set()).add(name)
        return True

    def _judge(self, question: Question, case: Case, answer: dict[str, Any], outputs: Path) -> Judgement:
        status = answer["status"]
        if status != "ok" and outputs.exists():
            return Judgement("fail", f"answered {status}, but wrote a file; nothing may be written unless ok")
        lacks_output = str(answer.get("feature", "")).startswith("want.") and not question.first
        if status == "unsupported" and (question.first or question.complete) and not lacks_output:
            return Judgement("fail", f"claimed all of it, then answered unsupported: {answer.get('feature')}")
        if status == "unsupported":
            return Judgement("unsupported", str(answer.get("feature", "")))
        inputs, expected = read_case(question)
        try:
            judgement = judge_answer(
                case, question.dtype, answer, inputs, expected, outputs, read_published(question)
            )
        except Exception as error:
            return Judgement("fail", f"the answer cannot be judged: {type(error).__name__}: {error}")
        if judgement.outcome == "pass" and case.want != question.case.want:
            left_out = ", ".join(name for name in question.case.want if name not in case.want)
            return msgspec.structs.replace(
                judgement, message=f"judged without {left_out}, which this variant does not write"
            )
        if judgement.outcome == "fail" and status == "ok" and expected is not None:
            step = self._find_first_step(question, inputs)
            judgement = msgspec.structs.replace(judgement, first_step=step)
        return judgement

    def _find_first_step(self, question: Question, inputs: Tensors) -> Difference | None:
        """Asks again, for all intermediates that the port claims. None when that fails as well."""
        claims = self._session.claims
        steps = OUTPUTS.get(question.case.op)
        if steps is None or claims is None:
            return None
        features = claims.ops[question.case.op].features
        request = self.request(question, [name for name in steps if name == "output" or name in features])
        try:
            if self._session.run(request)["status"] != "ok":
                return None
            got = read_tensors(Path(request["outputs"]))
            return first_different_step(question.case, question.dtype, inputs, got)
        except Exception:  # the case has failed already; this only explains
            return None


def read_case(question: Question) -> tuple[Tensors, Tensors | None]:
    """Inputs and expected values of a question."""
    files = question.case.files[question.dtype]
    expected = None if files.expected is None else _read(question.suite.path(files.expected))
    return _read(question.suite.path(files.inputs)), expected


def read_published(question: Question) -> Tensors | None:
    """The answers that somebody else has published, where there are any."""
    name = question.case.files[question.dtype].published
    return None if name is None else _read(question.suite.path(name))


def _read(path: Path) -> Tensors:
    return _read_version(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=TENSORS_KEPT)
def _read_version(path: Path, changed: int) -> Tensors:
    """Variants and ports ask for the same file again; one that was written anew is another file."""
    return read_tensors(path)


def _record(session: Session, question: Question, judgement: Judgement, seconds: float = 0.0) -> Result:
    return Result(
        port=session.port.name,
        suite=question.suite.suite.suite,
        case=question.case.id,
        dtype=question.dtype,
        variant=question.variant,
        judgement=judgement,
        seconds=round(seconds, 6),
        first=question.first,
    )


def _replace_judgement(result: Result, fault: PortFault) -> Result:
    return msgspec.structs.replace(result, judgement=Judgement(fault.outcome, str(fault)))
