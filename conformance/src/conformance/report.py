"""Reports: JSON Lines with a header, a line per result, and a footer.

Tables and pages are drawn from a report and from nothing else. The footer comes last, so a run that was cut
short has no footer and is refused when it is read: it can never look like a pass.
"""

from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

import msgspec

from .errors import UsageError
from .machine import Machine, describe_machine, git_commit, now
from .outcome import OUTCOMES, Result
from .repository import ROOT
from .session import StartAnswer

FORMAT = 1
DEFAULT_REPORT = ROOT / "site/report.jsonl"


class PortRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A port of the run. start: what it said about itself; without one, error says why there is none."""

    name: str
    language: str
    kind: str
    homepage: str = ""
    start: StartAnswer | None = None
    error: str = ""


class Header(msgspec.Struct, frozen=True, tag_field="kind", tag="header"):
    """Where, when, over what. narrowing: what the run was restricted to. suites: how many cases each has."""

    format: int
    version: str
    date: str
    commit: str
    machine: Machine
    ports: list[PortRecord]
    narrowing: dict[str, str]
    suites: dict[str, int]


class Footer(msgspec.Struct, frozen=True, tag_field="kind", tag="footer"):
    """How the run ended. unexpected: results that no known failure covers. problems: what else is wrong."""

    results: int
    counts: dict[str, int]
    ok: bool
    unexpected: list[str]
    problems: list[str]
    seconds: float


class Report(msgspec.Struct, frozen=True):
    """A whole report, read back."""

    header: Header
    results: list[Result]
    footer: Footer


class InvalidReport(UsageError):
    """The file is no finished report."""


class ReportWriter:
    """Writes a report line by line. Opening it ends whatever report was there before."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("wb")
        self._results: list[Result] = []

    def __enter__(self) -> "ReportWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def header(self, ports: list[PortRecord], narrowing: dict[str, str], suites: dict[str, int]) -> Header:
        """The first line."""
        header = Header(
            FORMAT, version("conformance"), now(), git_commit(), describe_machine(), ports, narrowing, suites
        )
        self._write(header)
        return header

    def results(self, results: Iterable[Result]) -> None:
        """More result lines."""
        for result in results:
            self._results.append(result)
            self._write(result)

    def footer(self, unexpected: list[str], problems: list[str], seconds: float) -> Footer:
        """The last line. No result at all is a problem of its own."""
        if not self._results:
            problems = [*problems, "no case was run"]
        footer = Footer(
            results=len(self._results),
            counts=count_outcomes(self._results),
            ok=not unexpected and not problems,
            unexpected=unexpected,
            problems=problems,
            seconds=round(seconds, 3),
        )
        self._write(footer)
        return footer

    def _write(self, line: Header | Result | Footer) -> None:
        self._stream.write(msgspec.json.encode(line) + b"\n")
        self._stream.flush()


def read_report(path: Path = DEFAULT_REPORT) -> Report:
    """A finished report. Raises InvalidReport when it is missing, cut short, or holds no result."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidReport(f"{path}: no report: {error.strerror}; `conformance run` makes one") from None
    decoder = msgspec.json.Decoder(Header | Result | Footer)
    entries: list[Header | Result | Footer] = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise InvalidReport(f"{path}:{number}: no line of a report: {error}") from None
    if not entries or not isinstance(entries[0], Header):
        raise InvalidReport(f"{path}: expected a header in the first line")
    if not isinstance(entries[-1], Footer):
        raise InvalidReport(f"{path}: expected a footer in the last line: the run was cut short")
    header, footer = entries[0], entries[-1]
    if header.format != FORMAT:
        raise InvalidReport(f"{path}: expected format {FORMAT}, got {header.format}")
    results = [entry for entry in entries[1:-1] if isinstance(entry, Result)]
    if len(results) != len(entries) - 2:
        raise InvalidReport(f"{path}: expected one header and one footer with results between them")
    if not results:
        raise InvalidReport(f"{path}: no case was run, which is not a pass")
    if footer.results != len(results) or footer.counts != count_outcomes(results):
        raise InvalidReport(
            f"{path}: the footer counts {footer.results} results, the file has {len(results)}"
        )
    return Report(header, results, footer)


def count_outcomes(results: Iterable[Result]) -> dict[str, int]:
    """How many results there are of each outcome, in the fixed order; every outcome has an entry."""
    counts = Counter(result.judgement.outcome for result in results)
    return {outcome: counts[outcome] for outcome in OUTCOMES}


def name_result(result: Result) -> str:
    """A result in one word: CASE:DTYPE:VARIANT, which is also what known-failure patterns match."""
    return f"{result.case}:{result.dtype}:{result.variant}"
