"""Checks that need no expected value: the same question asked in another way must give the same answer.

A relation turns the inputs of an sdpa case into others, and says what their output must be, given the first
output. Two answers may each be off by their bound, so they may differ by two; a repeated request must repeat
its bytes.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from .bounds import derive
from .case import Case
from .fixtures import LoadedSuite
from .judge import compare
from .outcome import Judgement, Result
from .questions import Narrowing, Question, find_unclaimed
from .run import Asker, read_case
from .session import PortFault, Session
from .tensors import Tensors, read_tensors, write_tensors

SUITE = "metamorphic"
OP = "sdpa"
DTYPE = "f32"
CASES_EACH = 10  # of all that a relation applies to, spread over the suite
ALLOWED = 2.0  # bounds between two answers
PER_ROW = ("q", "k", "v", "kv_lengths", "q_offset")
PER_SLOT = ("mask", "bias")


@dataclass(frozen=True)
class Relation:
    """change: other inputs, or None where the relation does not apply. follow: from the output to the other one.

    allowed: how many bounds the two may be apart; 0 = not a bit.
    """

    name: str
    change: Callable[[Case, Tensors], Tensors | None]
    follow: Callable[[np.ndarray], np.ndarray]
    allowed: float = ALLOWED


def again(case: Case, inputs: Tensors) -> Tensors | None:
    """The very same request."""
    return inputs


def last_row_alone(case: Case, inputs: Tensors) -> Tensors | None:
    """The last row of the batch without the others."""
    if inputs["q"].shape[0] < 2 or _numbers_slots(case):
        return None
    changed = {name: x[-1:] if name in PER_ROW else x for name, x in inputs.items()}
    for name in PER_SLOT:
        if name in inputs and inputs[name].ndim == 4:
            changed[name] = inputs[name][-1:]
    return changed


def repeated_heads(case: Case, inputs: Tensors) -> Tensors | None:
    """Grouped queries are what repeated KV heads are: head h reads h // G."""
    Hq, Hkv = inputs["q"].shape[1], inputs["k"].shape[1]
    if Hq == Hkv:
        return None
    return inputs | {name: np.repeat(inputs[name], Hq // Hkv, axis=1) for name in ("k", "v")}


def reversed_keys(case: Case, inputs: Tensors) -> Tensors | None:
    """Without positions in the question the order of the keys does not matter."""
    if (
        case.config.get("causal")
        or case.config.get("window")
        or "kv_lengths" in inputs
        or not inputs["k"].shape[2]
        or _numbers_slots(case)
    ):
        return None
    changed = inputs | {name: inputs[name][:, :, ::-1] for name in ("k", "v")}
    for name in PER_SLOT:
        if name in inputs and inputs[name].ndim and inputs[name].shape[-1] > 1:
            changed[name] = inputs[name][..., ::-1]
    return changed


def junk_beyond_length(case: Case, inputs: Tensors) -> Tensors | None:
    """What lies beyond a row's length is never looked at."""
    lengths = inputs.get("kv_lengths")
    if lengths is None:
        return None
    beyond = (np.arange(inputs["k"].shape[2]) >= lengths[:, None])[:, None, :, None]
    if not beyond.any():
        return None
    return inputs | {name: np.where(beyond, np.float32(np.nan), inputs[name]) for name in ("k", "v")}


def more_keys_hidden(case: Case, inputs: Tensors) -> Tensors | None:
    """Keys that a length hides might as well not be there: three more of them, and a length where there was none."""
    if any(name in inputs for name in PER_SLOT) or _numbers_slots(case):
        return None
    B, _, Tk, _ = inputs["k"].shape
    changed = {
        name: np.pad(inputs[name], ((0, 0), (0, 0), (0, 3), (0, 0)), constant_values=7) for name in ("k", "v")
    }
    return inputs | changed | {"kv_lengths": inputs.get("kv_lengths", np.full(B, Tk, np.int64))}


def _numbers_slots(case: Case) -> bool:
    """Dropout goes by the place of each slot among all: no other set of slots loses the same."""
    return case.config.get("dropout") is not None


def _same(x: np.ndarray) -> np.ndarray:
    return x


RELATIONS = (
    Relation("same-again", again, _same, allowed=0.0),
    Relation("row-alone", last_row_alone, lambda x: x[-1:]),
    Relation("repeated-heads", repeated_heads, _same),
    Relation("reversed-keys", reversed_keys, _same),
    Relation("junk-beyond-length", junk_beyond_length, _same),
    Relation("more-keys-hidden", more_keys_hidden, _same),
)


def check_relations(session: Session, suites: Sequence[LoadedSuite], narrowing: Narrowing) -> list[Result]:
    """A result for each relation, chosen case and variant. The session stays usable."""
    claims = session.claims
    if claims is None or OP not in claims.ops or (narrowing.dtypes and DTYPE not in narrowing.dtypes):
        return []
    results = []
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        asker = Asker(session, Path(folder))
        for relation in RELATIONS:
            for suite, case, changed in choose_cases(relation, suites):
                if find_unclaimed(claims, case, DTYPE) or not _claims_inputs(
                    claims.ops[OP].features, changed
                ):
                    continue
                for index, variant in enumerate(claims.ops[OP].variants):
                    if narrowing.variants and variant not in narrowing.variants:
                        continue
                    question = Question(suite, case, DTYPE, variant, index == 0)
                    results.append(check_relation(session, asker, relation, question, changed))
    return results


def check_relation(
    session: Session, asker: Asker, relation: Relation, question: Question, changed: Tensors
) -> Result:
    """Asks the question, and with the changed inputs once more."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        judgement = _check(session, asker, relation, question, changed, Path(folder))
    return Result(
        port=session.port.name,
        suite=SUITE,
        case=f"{SUITE}/{relation.name}/{question.case.id.removeprefix(f'{OP}/')}",
        dtype=DTYPE,
        variant=question.variant,
        judgement=judgement,
        seconds=round(time.monotonic() - started, 6),
        first=question.first,
    )


def choose_cases(
    relation: Relation, suites: Sequence[LoadedSuite]
) -> Iterator[tuple[LoadedSuite, Case, Tensors]]:
    """Cases of our own that the relation applies to, evenly spread, with the changed inputs."""
    found = []
    for suite in suites:
        for case in suite.suite.cases:
            ours = case.op == OP and "Bench" not in case.flags and case.published is None
            if ours and case.error is None and DTYPE in case.files:
                changed = relation.change(case, suite.inputs(case, DTYPE))
                if changed is not None:
                    found.append((suite, case, changed))
    yield from found[:: max(1, math.ceil(len(found) / CASES_EACH))]


def _claims_inputs(features: Sequence[str], inputs: Tensors) -> bool:
    """Whether the port also claims what the change brought in."""
    return "kv_lengths" not in inputs or "kv_lengths" in features


def _check(
    session: Session, asker: Asker, relation: Relation, question: Question, changed: Tensors, folder: Path
) -> Judgement:
    case = msgspec.structs.replace(question.case, want=["output"])
    path = folder / "changed.safetensors"
    write_tensors(path, changed)
    answers = []
    try:
        for inputs in (None, path):
            request = asker.request(question, case.want) | ({} if inputs is None else {"inputs": str(inputs)})
            answer = session.run(request)
            if answer["status"] != "ok":
                said = answer.get("message") or answer.get("feature")
                outcome = (
                    "unsupported" if answer["status"] == "unsupported" and not question.first else "error"
                )
                return Judgement(outcome, f"{answer['status']}: {said}")  # type: ignore[arg-type]
            answers.append(read_tensors(Path(request["outputs"]))["output"])
    except PortFault as fault:
        return Judgement(fault.outcome, str(fault))
    except (OSError, KeyError, ValueError) as error:
        return Judgement("fail", f"no output to compare: {type(error).__name__}: {error}")
    expected, got = relation.follow(answers[0]), answers[1]
    if expected.shape != got.shape:
        return Judgement("fail", f"output: expected shape {list(expected.shape)}, got {list(got.shape)}")
    if relation.allowed == 0:
        same = expected.tobytes() == got.tobytes()
        return Judgement("pass") if same else Judgement("fail", "the same request gave other bytes")
    bound = derive(case.op, case.config, read_case(question)[0], DTYPE, case.steps)["output"]
    judgement = compare("output", DTYPE, expected, got, relation.allowed * relation.follow(bound))
    if judgement.outcome == "pass" or judgement.difference is None:
        return judgement
    difference = judgement.difference
    message = f"output{difference.element}: expected {difference.expected} as before, got {difference.got}"
    return msgspec.structs.replace(judgement, message=message)
