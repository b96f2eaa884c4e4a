"""Times the ports against each other: interleaved rounds, ports that stay up, results judged first.

Every port times itself, around the library call alone. The driver sends each of them one request a round, in
an order that is rotated from round to round, with the reference twice; all others wait on their input
meanwhile.
"""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from rich.console import Console

from .bench_answers import BEYOND_PEAK, MOST_GFLOPS
from .bench_file import (
    DEFAULT_BENCH,
    FORMAT,
    BenchFooter,
    BenchHeader,
    BenchReport,
    Cell,
    Memory,
    Sample,
    build_report,
    write_line,
)
from .bench_memory import measure_memory
from .bench_plan import Budget, Plan, Rates
from .bench_rounds import check_cell, list_cells, list_threaded, time_cells
from .case import Case
from .cases.bench_caches import family
from .errors import UsageError
from .fixtures import LoadedSuite
from .known_failures import BAD
from .limits import Limits, NoLimits, best_of, measure_limits
from .machine import describe_machine, git_commit, now
from .ports import Port
from .process import kill_all
from .progress import Bars
from .questions import BENCH_FLAG
from .report import PortRecord
from .repository import ROOT
from .run import Asker
from .session import PATIENCE, PortFault, Session, Timeouts

REFERENCE = "python"
STARTED_AT_ONCE = 2


@dataclass(frozen=True)
class Options:
    """Where things are, and how the run was restricted, for the report.

    threads: granted to every port; more_threads: what rungs made for it are timed with besides, by a second process of
    their port each. limits: whether the machine's are measured.
    """

    described: dict[str, str] = field(default_factory=dict)
    file: Path = DEFAULT_BENCH
    threads: int = 1
    more_threads: Sequence[int] = ()
    timeouts: Timeouts = PATIENCE
    root: Path = ROOT
    limits: bool = True


def run_bench(
    ports: Sequence[Port], suites: Sequence[LoadedSuite], plan: Plan, options: Options, console: Console
) -> BenchReport:
    """Times every cell, writes the raw samples, returns the report. Raises UsageError without a case."""
    started = time.monotonic()
    cases = [(suite, case) for suite in suites for case in suite.suite.cases if BENCH_FLAG in case.flags]
    if not cases:
        raise UsageError(
            f"no case is left to time: {options.described or 'the fixtures have no bench suite'}"
        )
    options.file.parent.mkdir(parents=True, exist_ok=True)
    lines: list[Sample | Cell | Limits | Memory] = []
    problems: list[str] = []
    with ExitStack() as stack:
        stream = stack.enter_context(options.file.open("wb"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
        stack.callback(kill_all)
        sessions = _start_all(stack, ports, options)
        more = _start_more(stack, ports, options)
        problems += [
            f"{session.port.name}: {session.given_up}" for session in [*sessions, *more] if session.given_up
        ]
        before, no_limits = _limits(plan, options)
        header = _describe(sessions, plan, options, no_limits)
        write_line(stream, header)
        for each in before:
            write_line(stream, each)
        lines += before
        peak = best_of(before)
        most_gflops = BEYOND_PEAK * peak.fma_gflops if peak else MOST_GFLOPS
        budget = Budget(plan.repeats_s)
        asked = [*((one, list_cells) for one in sessions), *((one, list_threaded) for one in more)]
        cells = [
            (case, session, question)
            for suite, case in cases
            for session, list_questions in asked
            for question in list_questions(session, suite, case)
        ]
        done = 0
        askers: dict[tuple[int, int], Asker] = {}
        bars = stack.enter_context(Bars(console, {"bench": len(cells)}))
        fastest = Rates()
        for together in in_families([case for _, case in cases]):
            begun = time.monotonic()
            part_s = plan.part_left(len(cells), len(cells) - done, begun - started)
            entrants = []
            for case, session, question in cells:
                place = next((n for n, one in enumerate(together) if one is case), None)
                if place is not None:
                    # An asker keeps the inputs of one case, and these are asked in turns.
                    asker = askers.get((id(session), place)) or _ask_in(folder, session, place)
                    askers[id(session), place] = asker
                    needed = fastest.predict(session.port.name, question)
                    entrant = check_cell(session, question, asker, plan, part_s, needed)
                    entrants.append(entrant)
                    bars.tick("bench", entrant.cell.outcome in BAD)
            done += len(entrants)
            samples = time_cells(entrants, plan, header.reference, budget, most_gflops)
            for case in together:
                fastest.learn([one for one in samples if one.case == case.id], case.op, case.flops)
            found: list[Sample | Cell] = [*(entrant.cell for entrant in entrants), *samples]
            for line in found:
                write_line(stream, line)
                lines.append(line)
            for entrant in entrants:
                if entrant.cell.outcome in BAD:
                    problems.append(
                        f"{entrant.name} {entrant.cell.case}: {entrant.cell.outcome}: {entrant.cell.message}"
                    )
            bars.say(f"{family(together[0].id):<28} {len(entrants)} cells ({time.monotonic() - begun:.1f} s)")
        last: list[Limits | Memory] = [*(_limits(plan, options)[0] if before else [])]
        last += measure_memory(sessions, plan.memory_lengths, fastest, problems)
        for found_last in last:
            write_line(stream, found_last)
            lines.append(found_last)
        if not any(isinstance(line, Sample) for line in lines):
            problems.append("nothing was timed")
        footer = BenchFooter(
            cells=len(cells),
            samples=sum(isinstance(line, Sample) for line in lines),
            ok=not problems,
            problems=problems,
            seconds=round(time.monotonic() - started, 3),
        )
        write_line(stream, footer)
    return build_report(header, lines, footer)


def in_families(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases that are timed in the same rounds; most are alone."""
    return [list(found) for _, found in groupby(cases, key=lambda case: family(case.id))]


def with_reference(chosen: Sequence[Port], known: Sequence[Port]) -> list[Port]:
    """The chosen ports and, first of all, the reference that they are compared with."""
    return [port for port in known if port.name == REFERENCE and port not in chosen] + list(chosen)


def _limits(plan: Plan, options: Options) -> tuple[list[Limits], str]:
    """The limits of the machine, or none and why."""
    if not options.limits:
        return [], "not asked for"
    try:
        return [measure_limits(plan.limits_s)], ""
    except NoLimits as error:
        return [], str(error)


def _ask_in(folder: Path, session: Session, place: int) -> Asker:
    own = folder / f"{session.port.name}-{session.threads}-{place}"
    own.mkdir()
    return Asker(session, own)


def _start_all(stack: ExitStack, ports: Sequence[Port], options: Options) -> list[Session]:
    """Every port, started. One that does not start stays in the list and says why."""

    def start(session: Session) -> None:
        with suppress(PortFault):
            session.start()

    sessions = [
        stack.enter_context(
            Session(port, threads=options.threads, timeouts=options.timeouts, root=options.root)
        )
        for port in ports
    ]
    with ThreadPoolExecutor(STARTED_AT_ONCE) as pool:
        list(pool.map(start, sessions))
    return sessions


def _start_more(stack: ExitStack, ports: Sequence[Port], options: Options) -> list[Session]:
    """A process for each further number of threads, of the ports that say that they have so many."""
    started = [
        session
        for threads in options.more_threads
        for session in _start_all(stack, ports, replace(options, threads=threads))
    ]
    for session in started:
        if session.claims is not None and session.claims.threads != session.threads:
            session.kill()
    return [session for session in started if session.given_up or session.pid is not None]


def _describe(sessions: Sequence[Session], plan: Plan, options: Options, no_limits: str) -> BenchHeader:
    ports = [session.port for session in sessions]
    first = next((s for s in sessions if s.port.name == REFERENCE and s.claims), None) or next(
        (s for s in sessions if s.claims), sessions[0]
    )
    return BenchHeader(
        format=FORMAT,
        version=version("conformance"),
        date=now(),
        commit=git_commit(),
        machine=describe_machine(),
        mode=plan.mode,
        rounds=plan.rounds,
        threads=options.threads,
        reference=first.port.name,
        ports=[
            PortRecord(port.name, port.language, port.kind, port.homepage, session.claims, session.given_up)
            for port, session in zip(ports, sessions, strict=True)
        ],
        narrowing=options.described,
        no_limits=no_limits,
        more_threads=list(options.more_threads),
    )
