"""Known failures: one strict list per port, `conformance/known_failures/PORT.toml`, empty when all is well.

    [[failure]]
    pattern = "sdpa/window/*"        # or "sdpa/window/left-zero:f32:simd", CASE:DTYPE:VARIANT
    outcome = "fail"
    reason = "the window counts the query itself"
    link = "https://..."

A list is a claim about the present, so it fails as soon as it is wrong: a listed result that passes, an entry
that matches nothing, another outcome, a pattern that covers results that pass. Each message says what to
edit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from .errors import UsageError
from .outcome import OUTCOMES, Outcome, Result
from .report import name_result
from .repository import ROOT

FOLDER = ROOT / "conformance/known_failures"
BAD: tuple[Outcome, ...] = ("fail", "error", "crash", "timeout")
SHOWN = 5
SKIPS = "skips.toml"  # tests of the native suites that `make test-all` may find skipped; no list of a port


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry. pattern: a glob over the case id, or over CASE:DTYPE:VARIANT when it has a colon."""

    pattern: str
    outcome: Outcome
    reason: str
    link: str

    def matches(self, result: Result) -> bool:
        """Whether the entry speaks of this result."""
        return fnmatchcase(name_result(result) if ":" in self.pattern else result.case, self.pattern)


class FailureList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of one port."""

    failure: list[Failure] = []


@dataclass
class Verdict:
    """unexpected: bad results that no entry covers. problems: faults of the list, each with its edit."""

    unexpected: list[Result] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    expected: list[Result] = field(default_factory=list)


def read_failures(port: str, folder: Path = FOLDER) -> list[Failure]:
    """The entries for a port; no file means none. Raises UsageError for a broken file."""
    path = folder / f"{port}.toml"
    if not path.exists():
        return []
    try:
        entries = msgspec.toml.decode(path.read_bytes(), type=FailureList).failure
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: no list of known failures: {error}") from None
    for number, entry in enumerate(entries, 1):
        if entry.outcome == "pass":
            bad = [outcome for outcome in OUTCOMES if outcome != "pass"]
            raise UsageError(f"{path}: failure {number}: outcome: expected one of {', '.join(bad)}, got pass")
        for name in ("pattern", "reason", "link"):
            if not getattr(entry, name).strip():
                raise UsageError(f"{path}: failure {number}: {name}: expected some text, got none")
    return entries


def check_lists(ports: Iterable[str], folder: Path = FOLDER) -> list[str]:
    """Lists of ports that do not exist (any more)."""
    known = set(ports)
    return [
        f"{path.name}: no port is called {path.stem!r}; delete the file or rename it"
        for path in sorted(folder.glob("*.toml"))
        if path.stem not in known and path.name != SKIPS
    ]


def judge_results(
    port: str,
    results: Sequence[Result],
    failures: Sequence[Failure],
    *,
    narrowed: bool,
    must_support: bool = False,
) -> Verdict:
    """Holds the results of one port against its list.

    narrowed: the run left cases out, so an entry that matches nothing may still be right. must_support: an
    `unsupported` on the port's first variant is bad as well, unless it is listed.
    """
    verdict = Verdict()
    matched: list[list[Result]] = [[] for _ in failures]
    for result in results:
        owner = next((i for i, failure in enumerate(failures) if failure.matches(result)), None)
        if owner is not None:
            matched[owner].append(result)
        elif result.judgement.outcome in BAD or (
            must_support and result.judgement.outcome == "unsupported" and result.first
        ):
            verdict.unexpected.append(result)
    for failure, found in zip(failures, matched, strict=True):
        _judge_entry(f"{port}.toml: failure {failure.pattern!r}", failure, found, narrowed, verdict)
    return verdict


def _judge_entry(place: str, failure: Failure, found: list[Result], narrowed: bool, verdict: Verdict) -> None:
    as_listed = [result for result in found if result.judgement.outcome == failure.outcome]
    passed = [result for result in found if result.judgement.outcome == "pass"]
    others = [
        result
        for result in found
        if result.judgement.outcome != failure.outcome and result.judgement.outcome in BAD
    ]
    verdict.expected += as_listed
    if not found and not narrowed:
        verdict.problems.append(
            f"{place} matches no case (or an earlier entry took them all); delete the entry"
        )
    elif passed and not as_listed and not others:
        verdict.problems.append(f"{place} passes now; delete the entry")
    elif passed:
        verdict.problems.append(
            f"{place} is too wide: {len(passed)} of the {len(found)} results that it matches pass"
            f" ({_some(passed)}); set pattern to what fails: {_some(as_listed + others)}"
        )
    elif found and not as_listed and not others and not narrowed:
        verdict.problems.append(
            f"{place} expects {failure.outcome}, but all it matches is unsupported; delete it"
        )
    for result in others:
        verdict.unexpected.append(result)
    if others:
        outcome = others[0].judgement.outcome
        verdict.problems.append(
            f"{place} expects {failure.outcome}, got {outcome} for {_some(others)}; set outcome = {outcome!r}"
            " or list these apart"
        )


def _some(results: Sequence[Result]) -> str:
    names = [name_result(result) for result in results[:SHOWN]]
    return ", ".join(names) + (f" and {len(results) - SHOWN} more" if len(results) > SHOWN else "")
