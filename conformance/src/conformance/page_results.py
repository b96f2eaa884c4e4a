"""A report and its manifests as the pages show them: suites, cases, ports, and a tally for every crossing."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .case import Case, Note, Suite
from .known_failures import BAD
from .outcome import Judgement, Result
from .page_notes import base_of, note_of
from .report import PortRecord, Report
from .steps import STEPS
from .tally import Tally, tally

# The step that writes an intermediate: where a reader goes on when it is the first that differs.
WRITTEN_BY = {
    "sdpa": {
        **{"scores": "scores", "capped": "softcap", "biased": "bias"},
        **{"weights": "softmax", "lse": "softmax", "output": "weighted sum"},
    },
    "softmax": {"output": "normalise", "lse": "log-sum-exp"},
    "mha": {
        "weights": "attention",
        "lse": "attention",
        "mean_weights": "attention",
        "output": "output projection",
    },
}
STEP_OF = {
    op: {output: STEPS[op].index(step) + 1 for output, step in written.items()}
    for op, written in WRITTEN_BY.items()
}
NO_VARIANT = "-"
PALETTE = ("python", "torch", "rust", "typescript", "julia")  # ports that have a colour of their own
SPARE = ("port-5", "port-6", "port-7")


@dataclass(frozen=True)
class PortView:
    """A column. colour: a name of the style sheet. variants: those that the report has results of."""

    name: str
    language: str
    kind: str
    version: str
    runtime: str
    threads: int
    isa: list[str]
    error: str
    homepage: str
    colour: str
    variants: list[str]


@dataclass(frozen=True)
class Column:
    """A port's variant, as the page of a suite has it. first: the readable one, shown without its name."""

    port: PortView
    variant: str
    first: bool

    @property
    def label(self) -> str:
        """The port, and the variant where it is not the first."""
        return self.port.name if self.first else f"{self.port.name} {self.variant}"


@dataclass
class CaseView:
    """One case with all its results.

    case: None when no manifest here describes it. base: path and id of the case that it is made from, if any.
    """

    id: str
    path: str
    suite: str
    case: Case | None
    notes: list[tuple[str, Note]]
    results: list[Result]
    base: tuple[str, str] | None = None
    marks: list[Tally] = field(default_factory=list)

    @property
    def note(self) -> str:
        """What the case shows, in one line."""
        return self.case.note if self.case else note_of(self.id)

    @property
    def failures(self) -> list[Result]:
        """The results that are neither pass nor unsupported."""
        return [result for result in self.results if result.judgement.outcome in BAD]

    @property
    def failure_groups(self) -> list[tuple[str, Judgement]]:
        """What went wrong, each thing once, with the results that it went wrong in."""
        groups: list[tuple[list[Result], Judgement]] = []
        for result in self.failures:
            same = next((g for g, j in groups if g[0].port == result.port and j == result.judgement), None)
            if same is None:
                groups.append(([result], result.judgement))
            else:
                same.append(result)
        return [
            (f"{some[0].port} " + ", ".join(f"{r.variant} {r.dtype}".removeprefix("- ") for r in some), found)
            for some, found in groups
        ]

    @property
    def words(self) -> str:
        """What the filter of a suite's page looks in."""
        case = self.case
        parts = [self.id, self.note, *(name for name, _ in self.notes)]
        parts += [note.bug for _, note in self.notes] + ([case.op, case.error or ""] if case else [])
        return " ".join(parts).lower()


@dataclass(frozen=True)
class SuiteView:
    """One suite: a row of the matrix with a cell for each port, and a page of its own.

    left_out: what the source of the suite has beside these cases, and why it is not asked.
    """

    name: str
    path: str
    cases: list[CaseView]
    cells: list[Tally]
    columns: list[Column]
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """All that the pages of results show."""

    report: Report
    ports: list[PortView]
    suites: list[SuiteView]
    totals: list[Tally]
    failures: list[CaseView]

    @property
    def ok(self) -> bool:
        """The verdict of the run, known failures taken into account."""
        return self.report.footer.ok


def view_results(report: Report, suites: Iterable[Suite]) -> Results:
    """The report with what the manifests say about its cases. Suites stand in the order of the report."""
    suites = list(suites)
    described = {case.id: (case, suite) for suite in suites for case in suite.cases}
    left_out = {suite.suite: suite.left_out for suite in suites}
    by_suite: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    by_port: dict[str, list[Result]] = defaultdict(list)
    for result in report.results:
        by_suite[result.suite][result.case].append(result)
        by_port[result.port].append(result)
    ports = [_view_port(record, by_port[record.name], n) for n, record in enumerate(report.header.ports)]
    paths = case_paths(case for cases in by_suite.values() for case in cases)
    views = []
    for name, by_case in by_suite.items():
        cases = [_view_case(case, name, results, paths, described) for case, results in by_case.items()]
        views.append(_view_suite(name, cases, ports, left_out.get(name, {})))
    order = {name: n for n, name in enumerate(report.header.suites)}
    views.sort(key=lambda suite: order.get(suite.name, len(order)))
    failures = [case for suite in views for case in suite.cases if case.failures]
    return Results(report, ports, views, [tally(by_port[port.name]) for port in ports], failures)


def case_paths(ids: Iterable[str]) -> dict[str, str]:
    """A file name for every id, each its own: an id from elsewhere may hold anything."""
    paths: dict[str, str] = {}
    taken: set[str] = set()
    for id in dict.fromkeys(ids):
        parts = [re.sub(r"[^A-Za-z0-9._-]+", "_", part).strip(".") or "_" for part in id.split("/")]
        path = stem = "case/" + "/".join(parts)
        number = 2
        while path.lower() in taken:
            path, number = f"{stem}~{number}", number + 1
        taken.add(path.lower())
        paths[id] = f"{path}.html"
    return paths


def colour_of(port: str, index: int) -> str:
    """The port's own colour, or for others one by their place."""
    return port if port in PALETTE else SPARE[index % len(SPARE)]


def _view_port(record: PortRecord, results: Sequence[Result], index: int) -> PortView:
    start = record.start
    variants = list(dict.fromkeys(result.variant for result in results if result.variant != NO_VARIANT))
    return PortView(
        name=record.name,
        language=record.language,
        kind=record.kind,
        version=start.version if start else "",
        runtime=start.runtime if start else "",
        threads=start.threads if start else 0,
        isa=start.isa if start else [],
        error=record.error,
        homepage=record.homepage if record.homepage.startswith(("https://", "http://")) else "",
        colour=colour_of(record.name, index),
        variants=variants,
    )


def _view_case(
    id: str,
    suite: str,
    results: list[Result],
    paths: dict[str, str],
    described: dict[str, tuple[Case, Suite]],
) -> CaseView:
    case, manifest = described.get(id, (None, None))
    notes = [
        (flag, manifest.notes[flag])
        for flag in (case.flags if case else [])
        if manifest and flag in manifest.notes
    ]
    base = (paths[origin], origin) if (origin := base_of(id)) in paths else None
    return CaseView(id, paths[id], suite, case, notes, results, base)


def _view_suite(
    name: str, cases: list[CaseView], ports: Sequence[PortView], left_out: dict[str, str]
) -> SuiteView:
    columns = []
    for port in ports:
        mine = [result for case in cases for result in case.results if result.port == port.name]
        variants = dict.fromkeys((result.variant, result.first) for result in mine)
        columns += [Column(port, variant, first) for variant, first in variants]
    for case in cases:
        by_column: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for result in case.results:
            by_column[result.port, result.variant].append(result)
        case.marks = [tally(by_column[column.port.name, column.variant]) for column in columns]
    cells = [
        tally(result for case in cases for result in case.results if result.port == port.name)
        for port in ports
    ]
    path = f"suite/{re.sub(r'[^A-Za-z0-9._-]+', '_', name).strip('.') or '_'}.html"
    return SuiteView(name, path, cases, cells, columns, left_out)
