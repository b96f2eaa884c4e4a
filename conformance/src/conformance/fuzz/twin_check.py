"""Asks a port both scripts of a twin, and compares what must be equal."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..bounds import derive
from ..judge import compare
from ..metamorphic import SUITE
from ..outcome import Judgement, Result
from ..questions import Question
from ..run import Asker, read_case
from ..session import PortFault, Session
from ..tensors import Tensors, read_tensors
from .cache_twins import BITS, Pair, Twin


def check_twin(session: Session, asker: Asker, twin: Twin, questions: Sequence[Question]) -> Result:
    """questions: about each draft of the twin, in one variant, which the port claims."""
    started = time.monotonic()
    judgement = _check(session, asker, twin, questions)
    return Result(
        port=session.port.name,
        suite=SUITE,
        case=f"{SUITE}/{twin.name}/{questions[0].case.id}",
        dtype=questions[0].dtype,
        variant=questions[0].variant,
        judgement=judgement,
        seconds=round(time.monotonic() - started, 6),
        first=questions[0].first,
    )


def _check(session: Session, asker: Asker, twin: Twin, questions: Sequence[Question]) -> Judgement:
    answers: list[Tensors] = []
    try:
        for question in questions:
            request = asker.request(question, question.case.want)
            answer = session.run(request)
            outputs = Path(request["outputs"])
            if answer["status"] == "unsupported" and not (question.first or question.complete):
                return Judgement("unsupported", str(answer.get("feature", "")))
            if answer["status"] != "ok":
                said = answer.get("message") or answer.get("feature")
                return Judgement("fail", f"{answer['status']}: {said}")
            answers.append(read_tensors(outputs) if outputs.exists() else {})
            outputs.unlink(missing_ok=True)
    except PortFault as fault:
        return Judgement(fault.outcome, str(fault))
    except (OSError, ValueError) as error:
        return Judgement("fail", f"no outputs to compare: {type(error).__name__}: {error}")
    exact = twin.near == BITS or (session.port.fixed_order and questions[0].first)
    bounds = None if exact else [_derive(question) for question in questions]
    for written, bound in zip(answers, bounds or (), strict=False):
        for name, x in written.items():
            shape = bound[name].shape if name in bound else None
            if x.shape != shape:
                said = "was not asked for" if shape is None else f"must have the shape {list(shape)}"
                return Judgement("fail", f"{twin.name}: {name} {list(x.shape)} {said}")
    for pair in twin.pairs:
        for first, second in _names(pair, answers[0]):
            try:
                expected, got = answers[0][first], _join([answers[-1][name] for name in second])
                expected = expected if pair.rows is None else expected[pair.rows]
            except KeyError as missing:
                return Judgement("fail", f"{twin.name}: {missing} was not written")
            except (ValueError, IndexError) as error:  # shapes that do not join, or have no rows
                return Judgement("fail", f"{twin.name}: {first} and {' + '.join(second)}: {error}")
            said = f"{twin.name}: {first} and {' + '.join(second)}"
            if expected.shape != got.shape:
                return Judgement("fail", f"{said} have shapes {list(expected.shape)} and {list(got.shape)}")
            if exact or expected.dtype.kind != "f" or bounds is None:
                if expected.tobytes() != got.tobytes() and not _same_numbers(expected, got):
                    return Judgement("fail", f"{said} must have the same bits: {_where(expected, got)}")
                continue
            allowed = bounds[0][first] if pair.rows is None else bounds[0][first][pair.rows]
            allowed = allowed + _join([bounds[-1][name] for name in second])
            judgement = compare(first, questions[0].dtype, expected, got, allowed)
            if judgement.outcome != "pass":
                return Judgement(
                    "fail", f"{said} are further apart than both bounds: {_where(expected, got)}"
                )
    return Judgement("pass")


def _names(pair: Pair, written: Tensors) -> list[tuple[str, tuple[str, ...]]]:
    """Of a read or of stats every tensor by itself."""
    if pair.first in written:
        return [(pair.first, pair.second)]
    parts = [name.removeprefix(f"{pair.first}.") for name in written if name.startswith(f"{pair.first}.")]
    return [(f"{pair.first}.{part}", tuple(f"{name}.{part}" for name in pair.second)) for part in parts] or [
        (pair.first, pair.second)
    ]


def _join(parts: list[np.ndarray]) -> np.ndarray:
    """Along the axis of queries, (B, Hq, Tq, ...)."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)


def _derive(question: Question) -> Tensors:
    case = question.case
    return derive(case.op, case.config, read_case(question)[0], question.dtype, case.steps)


def _same_numbers(a: np.ndarray, b: np.ndarray) -> bool:
    """NaN is NaN, and 0 is -0: what is hidden may be added as a zero of either sign."""
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _where(a: np.ndarray, b: np.ndarray) -> str:
    differ = np.argwhere(~((a == b) | ((a != a) & (b != b))))
    at = tuple(map(int, differ[0]))
    return f"at {list(at)} {a[at]} and {b[at]}"
