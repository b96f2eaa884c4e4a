"""A conformance run: every chosen port over every chosen case, a report, and a verdict.

Ports run side by side, two at a time, each in a thread of its own that waits for its process; results are
reported in the order of the ports, whatever finishes first.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from .case import Case
from .errors import UsageError
from .explain import describe_difference
from .fixtures import LoadedSuite
from .known_failures import BAD, FOLDER, Failure, Verdict, check_lists, judge_results, read_failures
from .metamorphic import check_relations
from .minilm.record import record
from .minilm.similarity import SUITE as MINILM
from .minilm.similarity import PortSimilarity, measure_session, to_results
from .more_threads import check_threads
from .outcome import Result
from .pairs import OP as PAIRED
from .pairs import check_pairs
from .ports import PORTS, Port, read_ports
from .process import kill_all
from .progress import Bars
from .protocol import check_protocol
from .questions import EVERYTHING, Narrowing, list_questions
from .report import DEFAULT_REPORT, Footer, PortRecord, ReportWriter, count_outcomes, name_result
from .repository import ROOT
from .run import run_port
from .session import PATIENCE, PortFault, Session, Timeouts

SIDE_BY_SIDE = 2
FAILURES_SHOWN = 20


@dataclass(frozen=True)
class Options:
    """How a run goes.

    described: the narrowing as the report shows it. must_support: what a port's first variant does not
    support is a failure unless it is listed. protocol, metamorphic, pairs, sentences: the checks beside the cases.
    known_failures: the folder of the lists; None = there are none.
    """

    narrowing: Narrowing = EVERYTHING
    described: dict[str, str] = field(default_factory=dict)
    timeouts: Timeouts = PATIENCE
    must_support: bool = False
    protocol: bool = True
    metamorphic: bool = True
    pairs: bool = True
    sentences: bool = True
    known_failures: Path | None = FOLDER
    ports_folder: Path = PORTS
    report: Path = DEFAULT_REPORT
    max_restarts: int = 10
    root: Path = ROOT

    @property
    def narrowed(self) -> bool:
        """Whether cases were left out, so that a known failure may rightly match nothing."""
        return any(name != "ports" for name in self.described)


def run_conformance(
    ports: Sequence[Port], suites: Sequence[LoadedSuite], options: Options, console: Console
) -> Footer:
    """Runs, writes the report, prints what is wrong, and returns the footer: `ok` when all is well."""
    started = time.monotonic()
    suites = [suite for suite in suites if any(options.narrowing.takes(case) for case in suite.suite.cases)]
    if not suites:
        raise UsageError(f"no case is left to run: {options.described or 'there are no fixtures'}")
    lists, problems = _read_lists(ports, options)
    cases = {case.id for suite in suites for case in suite.suite.cases}
    verdicts: dict[str, Verdict] = {}
    with ExitStack() as stack, ReportWriter(options.report) as writer:
        sessions = [
            stack.enter_context(
                Session(port, timeouts=options.timeouts, max_restarts=options.max_restarts, root=options.root)
            )
            for port in ports
        ]
        stop = threading.Event()
        pool = ThreadPoolExecutor(SIDE_BY_SIDE)
        stack.callback(pool.shutdown, cancel_futures=True)
        stack.callback(kill_all)  # an interrupted run: no thread shall wait for an answer any more
        stack.callback(stop.set)
        list(pool.map(_start_quietly, sessions))
        writer.header(
            [_describe(session) for session in sessions],
            options.described,
            {suite.suite.suite: len(suite.suite.cases) for suite in suites},
        )
        relayed = _relay(sessions, suites, options)
        with Bars(console, {s.port.name: _count_questions(s, suites, options) for s in sessions}) as bars:
            runs = pool.map(lambda session: _run_one(session, suites, options, bars, stop), sessions)
            sentences = []
            for port, (results, found, seconds) in zip(ports, runs, strict=True):
                sentences += [found] if found else []
                results = relayed.get(port.name, []) + results
                writer.results(results)
                verdict = judge_results(
                    port.name,
                    results,
                    lists[port.name],
                    narrowed=options.narrowed,
                    must_support=options.must_support and port.kind == "port",
                )
                verdicts[port.name] = verdict
                problems += verdict.problems
                if not any(r.case in cases and r.judgement.outcome != "unsupported" for r in results):
                    problems.append(f"{port.name}: no case was asked, because it claims none of them")
                bars.say(_summarise(port.name, results, seconds))
        if sentences:
            record(sentences, options.report.with_name("minilm.jsonl"))
        unexpected = [f"{name} {name_result(r)}" for name, v in verdicts.items() for r in v.unexpected]
        footer = writer.footer(unexpected, problems, time.monotonic() - started)
    _print_failures(console, verdicts, suites)
    for suite in suites:
        for reason, count in Counter(suite.suite.left_out.values()).items():
            line = f"{suite.suite.suite}: {count} more cannot be asked yet: {reason}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    for problem in footer.problems:
        console.print(f"problem: {problem}", highlight=False, markup=False, soft_wrap=True)
    return footer


def _read_lists(ports: Sequence[Port], options: Options) -> tuple[dict[str, list[Failure]], list[str]]:
    """The known failures of each port, and the lists that belong to none."""
    folder = options.known_failures
    if folder is None:
        return {port.name: [] for port in ports}, []
    known = [port.name for port in ports]
    if options.ports_folder.is_dir():
        known += [port.name for port in read_ports(options.ports_folder)]
    return {port.name: read_failures(port.name, folder) for port in ports}, check_lists(known, folder)


def _count_questions(session: Session, suites: Sequence[LoadedSuite], options: Options) -> int:
    questions = list_questions(session.claims, suites, options.narrowing)
    return sum(not question.unclaimed for question in questions)


def _run_one(
    session: Session, suites: Sequence[LoadedSuite], options: Options, bars: Bars, stop: threading.Event
) -> tuple[list[Result], PortSimilarity | None, float]:
    """All results of one port, what it made of the sentences, and the seconds that it took."""
    started = time.monotonic()
    results = check_protocol(session) if options.protocol else []
    if options.metamorphic:
        results += check_relations(session, suites, options.narrowing)
        results += check_threads(session, suites, options.narrowing)
    real = options.sentences and any(suite.suite.suite == MINILM for suite in suites)
    found = measure_session(session) if real else None
    results += to_results(found) if found else []
    results += run_port(
        session,
        suites,
        options.narrowing,
        lambda result: bars.tick(session.port.name, result.judgement.outcome in BAD),
        stop.is_set,
    )
    return results, found, time.monotonic() - started


def _relay(
    sessions: Sequence[Session], suites: Sequence[LoadedSuite], options: Options
) -> dict[str, list[Result]]:
    """Caches handed from port to port, where caches are asked about at all and the cases are our own."""
    ours = any(case.op == PAIRED for suite in suites if suite.cache is not None for case in suite.suite.cases)
    return check_pairs(sessions, options.narrowing) if options.pairs and ours else {}


def _start_quietly(session: Session) -> None:
    """A port that does not start is recorded as such by every question."""
    with suppress(PortFault):
        session.start()


def _describe(session: Session) -> PortRecord:
    port = session.port
    return PortRecord(port.name, port.language, port.kind, port.homepage, session.claims, session.given_up)


def _summarise(name: str, results: Sequence[Result], seconds: float) -> str:
    counts = ", ".join(f"{n} {outcome}" for outcome, n in count_outcomes(results).items() if n)
    return f"{name:<12} {counts or 'nothing'} ({seconds:.1f} s)"


def _print_failures(console: Console, verdicts: dict[str, Verdict], suites: Sequence[LoadedSuite]) -> None:
    """Each unexpected result with what its case is for, the first few of each port."""
    cases = {case.id: (suite, case) for suite in suites for case in suite.suite.cases}
    for name, verdict in verdicts.items():
        alike = Counter(result.judgement.message for result in verdict.unexpected)
        # What is wrong in the same words, as with a port that does not start, is said once.
        first = {result.judgement.message: result for result in reversed(verdict.unexpected)}
        shown = [result for result in verdict.unexpected if first[result.judgement.message] is result]
        for result in shown[:FAILURES_SHOWN]:
            lines = _describe_failure(name, result, cases)
            if alike[result.judgement.message] > 1:
                lines.append(f"... and the same of {alike[result.judgement.message] - 1} more")
            console.print("\n    ".join(lines), highlight=False, markup=False, soft_wrap=True)
        if len(shown) > FAILURES_SHOWN:
            rest = len(shown) - FAILURES_SHOWN
            console.print(f"... and {rest} more kinds of {name}; all are in the report", highlight=False)


def _describe_failure(name: str, result: Result, cases: dict[str, tuple[LoadedSuite, Case]]) -> list[str]:
    """What went wrong, the first step that differs, and what the case is for."""
    judgement = result.judgement
    lines = [f"{judgement.outcome}: {name} {name_result(result)}", *judgement.message.splitlines()]
    if judgement.first_step is not None:
        lines.append(f"first step that differs: {describe_difference(judgement.first_step)}")
    if result.case in cases:
        suite, case = cases[result.case]
        lines += [f"case: {case.note}"] if case.note else []
        lines += [f"{f}: {suite.suite.notes[f].bug}" for f in case.flags if f in suite.suite.notes]
    return lines
