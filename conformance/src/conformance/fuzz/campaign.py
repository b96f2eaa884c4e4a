"""The campaign: draws questions, asks every port, and shrinks the first disagreement of each op to a smallest case.

hypothesis draws and shrinks; the seed decides everything, so a campaign can be repeated. What disagrees is written as a
folder that `conformance run --cases` asks again.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from rich.console import Console

from ..bounds.eviction import find_undecided
from ..case import Case, Suite, encode_suite
from ..cases.draft import Draft
from ..explain import describe_difference
from ..features import features
from ..fixtures import LoadedSuite
from ..known_failures import BAD
from ..metamorphic import RELATIONS, Relation, check_relation
from ..oracle.kv_cache import predict_codes
from ..outcome import Result
from ..ports import Port
from ..progress import Bars
from ..questions import Question, list_questions
from ..realise import realise, write_case
from ..run import Asker, answer_question
from ..session import PATIENCE, Session
from ..steps import OUTPUTS
from . import attention, blocks, caches, kernels, linear, positions
from .broken import REQUIRED, break_one
from .cache_twins import Twin, draw_twin
from .draws import Chooser, Decide
from .twin_check import check_twin

SUITE, CACHES = "fuzz", "kv_cache"
LONG = 1000  # so many questions are told about as they go
DTYPES = ("f32", "f64", "f16", "bf16")

QUESTIONS: dict[str, Callable[[Chooser], Draft]] = {
    "softmax": attention.softmax,
    "sdpa": attention.sdpa,
    "mha": attention.mha,
    CACHES: caches.kv_cache,
    "cast": positions.cast,
    "sinusoidal": positions.sinusoidal,
    "rope": positions.rope,
    "alibi": positions.alibi,
    "relative_bias": positions.relative_bias,
    "scoring": attention.scoring,
    "merge": attention.merge,
    "varlen": attention.varlen,
    "dropout": positions.dropout,
    "linear_attention": linear.linear_attention,
    "gated_linear": linear.gated_linear,
    "sparse": linear.sparse,
    "structured": attention.structured,
    "mla": attention.mla,
    "layer_norm": blocks.layer_norm,
    "rms_norm": blocks.rms_norm,
    "gelu": blocks.gelu,
    "swiglu": blocks.swiglu,
    "block": blocks.block,
    "transformer": blocks.transformer,
    "cache_write": positions.cache_write,
}
# What `--kernels` asks in their place.
KERNELS: dict[str, Callable[[Chooser], Draft]] = {"sdpa": kernels.sdpa}
# An op with many options gets more of the questions.
WEIGHTS = {"sdpa": 6, "kv_cache": 3, "mha": 3, "rope": 2, "sparse": 2, "block": 2}


@dataclass(frozen=True)
class Drawn:
    """A question. relation: what to try on its answer if it allows one. twin: of a cache script, what must be equal."""

    draft: Draft
    dtype: str
    relation: Relation
    twin: Twin | None = None

    @property
    def drafts(self) -> list[Draft]:
        """With the twin's second script, if it has one."""
        return [self.draft, *(self.twin.drafts[1:] if self.twin else ())]


class Disagreement(AssertionError):
    """A question that some port answered wrongly."""

    def __init__(self, drawn: Drawn, results: Sequence[Result]) -> None:
        super().__init__(f"{drawn.draft.op}: {len(results)} wrong answers")
        self.drawn, self.results = drawn, results

    @property
    def draft(self) -> Draft:
        """The question, or the first of two."""
        return self.drawn.draft

    @property
    def dtype(self) -> str:
        """In which it was asked."""
        return self.drawn.dtype


@dataclass
class Tally:
    """What was asked. answers: by outcome. found: the smallest question of each op that some port got wrong."""

    questions: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    found: list[Disagreement] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


def draw_question(decide: Decide, op: str, *, for_kernels: bool = False) -> Drawn:
    """A question about the op, perhaps one of KERNELS. Rejects one whose answer hangs on a rounding."""
    choose = Chooser(decide)
    relation = choose.one_of(RELATIONS)
    if for_kernels:
        draft = replace(KERNELS[op](choose), id=f"{SUITE}/{op}")
        dtype = choose.one_of(DTYPES) if choose.rarely() else "f32"
        return Drawn(replace(draft, dtypes=(dtype,)), dtype, relation)
    if op == CACHES and choose.sometimes():
        twin = draw_twin(choose)
        drafts = [_settle(draft, "f32") for draft in twin.drafts]
        return Drawn(drafts[0], "f32", relation, replace(twin, drafts=tuple(drafts)))
    draft = QUESTIONS[op](choose)
    dtype = choose.one_of(DTYPES) if choose.maybe() else "f32"
    if draft.op in REQUIRED and choose.rarely():
        draft = break_one(choose, draft)
    elif draft.op in OUTPUTS and choose.maybe():
        draft = replace(draft, want=OUTPUTS[op])
    return Drawn(_settle(replace(draft, id=f"{SUITE}/{op}"), dtype), dtype, relation)


def _settle(draft: Draft, dtype: str) -> Draft:
    """The question in its type. What a policy keeps, and so the codes after it, is decided by the rounded inputs."""
    draft = replace(draft, dtypes=(dtype,))
    if draft.op != CACHES or not any(step.get("policy") for step in draft.config["steps"]):
        return draft
    inputs, _ = realise(draft, dtype, answers=False)
    codes = predict_codes(draft.config, inputs)
    if find_undecided(draft.config, inputs, codes, dtype):
        hypothesis.reject()
    return replace(draft, steps=tuple(codes))


def run_campaign(
    ports: Sequence[Port],
    ops: Sequence[str],
    count: int,
    seed: int,
    folder: Path,
    console: Console,
    *,
    for_kernels: bool = False,
) -> Tally:
    """Asks `count` questions, shared among the ops by weight. Writes each disagreement below the folder.

    for_kernels: those of KERNELS, about nothing but the ops that it has.
    """
    tally = Tally()
    shares = share_out(count, ops)
    with ExitStack() as stack:
        sessions = [stack.enter_context(Session(port, timeouts=PATIENCE)) for port in ports]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        for _ in pool.map(_start, sessions):
            pass
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-fuzz-")))
        asker = _Asker(sessions, pool, scratch)
        with Bars(console, shares) as bars:
            for op, share in shares.items():
                try:
                    _run_op(op, share, seed, asker, tally, bars, for_kernels=for_kernels)
                except Disagreement as disagreement:
                    tally.found.append(disagreement)
                    tally.folders.append(write_disagreement(disagreement, folder, seed))
    return tally


def share_out(count: int, ops: Sequence[str]) -> dict[str, int]:
    """How many questions each op gets, at least one."""
    total = sum(WEIGHTS.get(op, 1) for op in ops)
    return {op: max(1, round(count * WEIGHTS.get(op, 1) / total)) for op in ops}


def _run_op(
    op: str, share: int, seed: int, asker: "_Asker", tally: Tally, bars: Bars, *, for_kernels: bool
) -> None:
    """Raises the Disagreement that shrinking ended with."""
    wrong: Disagreement | None = None
    started = time.monotonic()

    def ask(data: st.DataObject) -> None:
        nonlocal wrong
        drawn = draw_question(data.draw, op, for_kernels=for_kernels)
        results = asker.ask(drawn)
        bad = [
            r for r in results if r.judgement.outcome in BAD or (r.first and r.judgement.outcome != "pass")
        ]
        if wrong is None:  # what shrinking asks again is not counted
            tally.questions[op] += 1
            tally.errors += drawn.draft.error is not None
            tally.answers.update(r.judgement.outcome for r in results)
            bars.tick(op, bool(bad))
            if share >= LONG and tally.questions[op] % (share // 10) == 0:
                speed = tally.questions[op] / (time.monotonic() - started)
                bars.say_plain(f"{op}: {tally.questions[op]} of {share}, {speed:.1f} a second")
        if bad:
            if wrong is None:
                bars.say(f"{op}: a disagreement at question {tally.questions[op]}; it is made smaller now")
            wrong = Disagreement(drawn, bad)
            raise wrong

    test = hypothesis.settings(
        max_examples=share,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )(hypothesis.given(st.data())(ask))
    try:
        hypothesis.seed(f"{seed}/{op}{'/kernels' if for_kernels else ''}")(test)()
    except FlakyFailure:  # a port that answered the same question differently when it was asked again
        assert wrong is not None
        raise wrong from None


class _Asker:
    """Puts one question to all sessions, two at a time."""

    def __init__(self, sessions: Sequence[Session], pool: ThreadPoolExecutor, scratch: Path) -> None:
        self._sessions, self._pool, self._scratch = sessions, pool, scratch
        self._askers = {}
        for session in sessions:
            place = scratch / session.port.name
            place.mkdir()
            self._askers[session.port.name] = Asker(session, place)
        self._count = 0

    def ask(self, drawn: Drawn) -> list[Result]:
        """Every claimed answer in every variant, and those of the relation or the twin if there is one."""
        self._count += 1
        suite = self._write(drawn)
        try:
            answers = list(
                self._pool.map(lambda session: self._ask_one(session, suite, drawn), self._sessions)
            )
        finally:
            for path in suite.folder.rglob("*.safetensors"):
                path.unlink()
        return [result for results in answers for result in results]

    def _write(self, drawn: Drawn) -> LoadedSuite:
        folder = self._scratch / "questions"
        cases = []
        for n, draft in enumerate(drawn.drafts):  # a case's bounds are kept by its id
            numbered = replace(draft, id=f"{draft.id}/{self._count}{'-twin' if n else ''}")
            cases.append(write_question(numbered, drawn.dtype, folder))
        return LoadedSuite(Suite(SUITE, 1, cases), folder)

    def _ask_one(self, session: Session, suite: LoadedSuite, drawn: Drawn) -> list[Result]:
        asker = self._askers[session.port.name]
        results = []
        asked: dict[str, list[Question]] = {}
        for question in list_questions(session.claims, [suite]):
            if not question.unclaimed:
                results.append(answer_question(session, asker, question))
                results += _ask_relation(session, asker, drawn.relation, question, results[-1])
                asked.setdefault(question.variant, []).append(question)
        for questions in asked.values() if drawn.twin else ():
            if drawn.twin and len(questions) == len(drawn.twin.drafts):
                results.append(check_twin(session, asker, drawn.twin, questions))
        return results


def _ask_relation(
    session: Session, asker: Asker, relation: Relation, question: Question, answered: Result
) -> list[Result]:
    """The relation of an f32 question of sdpa that was answered rightly; nothing where it does not apply."""
    case = question.case
    if case.op != "sdpa" or question.dtype != "f32" or case.error or answered.judgement.outcome != "pass":
        return []
    changed = relation.change(case, question.suite.inputs(case, "f32"))
    return [] if changed is None else [check_relation(session, asker, relation, question, changed)]


def _start(session: Session) -> None:
    """Raises PortFault, since a campaign without a port would find nothing."""
    session.start()


def write_question(draft: Draft, dtype: str, folder: Path) -> Case:
    """Writes the files of a question below the folder, and returns its entry of a manifest."""
    inputs, expected = realise(draft, dtype)
    want = list(draft.want) if draft.error is None else []
    return Case(
        id=draft.id,
        op=draft.op,
        config=draft.config,
        files={dtype: write_case(folder, draft, dtype, inputs, expected)},
        want=want,
        features=[] if draft.error else features(draft.op, draft.config, inputs, want),
        note=draft.note,
        error=draft.error,
        steps=None if draft.steps is None else list(draft.steps),
        exact=list(draft.exact),
        shapes={name: list(x.shape) for name, x in inputs.items()},
    )


def write_disagreement(found: Disagreement, folder: Path, seed: int) -> Path:
    """A suite of the one case, or of a twin's two, with what each port answered in the note."""
    target = folder / f"{found.draft.op}-{seed}"
    said = "; ".join(
        f"{r.port} {r.variant}: {r.judgement.outcome} {r.judgement.message}" for r in found.results
    )
    cases = []
    for n, draft in enumerate(found.drawn.drafts):
        noted = replace(draft, id=draft.id + ("-twin" if n else ""), note=f"seed {seed}: {said}")
        cases.append(write_question(noted, found.dtype, target))
    (target / "manifest.json").write_bytes(encode_suite(Suite(SUITE, 1, cases)))
    return target


def describe(found: Disagreement, folder: Path) -> list[str]:
    """What a person reads of a disagreement."""
    draft = found.draft
    shapes = ", ".join(f"{name} {list(np.shape(getattr(x, 'value', x)))}" for name, x in draft.inputs.items())
    lines = [f"{draft.op} ({found.dtype}): {draft.config}", f"  {shapes}"]
    if draft.error:
        lines.append(f"  must give {draft.error}")
    for result in found.results:
        lines.append(
            f"  {result.port} {result.variant}: {result.judgement.outcome}: {result.judgement.message}"
        )
        if result.judgement.first_step is not None:
            lines.append(f"    {describe_difference(result.judgement.first_step)}")
    return [*lines, f"  again: .venv/bin/conformance run --cases {folder}"]
