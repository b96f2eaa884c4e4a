"""The command `conformance explain CASE`: what a case is, what it catches, and how each port did."""

import difflib
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from .case import Case, Suite
from .errors import UsageError
from .fixtures import LoadedSuite
from .outcome import Difference, Result
from .report import InvalidReport, read_report
from .tally import show_share
from .tensors import Tensors

SMALL = 24  # a tensor of so many elements is shown
SUGGESTED = 8


def explain_case(name: str, suites: Sequence[LoadedSuite], report: Path, console: Console) -> None:
    """Prints all of it. Raises UsageError for an unknown case, with those that are near."""
    suite, case = find_case(name, suites)
    say = _speaker(console)
    say(f"{case.id}   ({case.op}, suite {suite.suite.suite})")
    if case.note:
        say(case.note)
    for line in describe_flags(suite.suite, case):
        say(f"  {line}")
    say("")
    say("what is asked")
    for line in describe_request(case):
        say(f"  {line}")
    dtype = next(iter(case.files))
    say("")
    say(f"inputs ({dtype})")
    for line in describe_tensors(suite.inputs(case, dtype)):
        say(f"  {line}")
    expected = suite.expected(case, dtype)
    if expected is not None:
        say("")
        say("expected")
        for line in describe_tensors(expected):
            say(f"  {line}")
    published = suite.published(case, dtype)
    if case.published is not None and published is not None:
        theirs = case.published
        say("")
        say(f"published by {theirs.source}, judged as well: rtol {theirs.rtol:g}, atol {theirs.atol:g}")
        for line in describe_tensors(published):
            say(f"  {line}")
    say("")
    for line in describe_results(case.id, report):
        say(line)


def find_case(name: str, suites: Sequence[LoadedSuite]) -> tuple[LoadedSuite, Case]:
    """The case of that id. Raises UsageError that suggests near matches."""
    cases = {case.id: (suite, case) for suite in suites for case in suite.suite.cases}
    if name in cases:
        return cases[name]
    reason = next((suite.suite.left_out[name] for suite in suites if name in suite.suite.left_out), None)
    if reason is not None:
        raise UsageError(f"{name} cannot be asked yet: {reason}")
    near = [id_ for id_ in cases if fnmatchcase(id_, name) or name.lower() in id_.lower()]
    near += [id_ for id_ in difflib.get_close_matches(name, cases, SUGGESTED, 0.5) if id_ not in near]
    if len(near) > SUGGESTED:
        near = [*near[:SUGGESTED], f"... and {len(near) - SUGGESTED} more"]
    hint = "; near: " + ", ".join(near) if near else ""
    raise UsageError(f"no case is called {name!r}{hint}")


def describe_flags(suite: Suite, case: Case) -> list[str]:
    """Each flag with the bug that it stands for, the harm, and where it was seen."""
    lines = []
    for flag in case.flags:
        note = suite.notes.get(flag)
        lines.append(f"{flag}: {note.bug}" if note else flag)
        if note:
            lines.append(f"    harm: {note.effect}")
            lines += [f"    seen: {note.link}"] if note.link else []
    return lines


def describe_request(case: Case) -> list[str]:
    """Config, outputs and what the port must claim; a script step by step with the code that each must give."""
    config = {name: value for name, value in case.config.items() if name != "steps"}
    lines = [f"config {json.dumps(config)}"]
    steps: list[Any] = case.config.get("steps", [])
    codes = case.steps or [""] * len(steps)
    for number, (step, code) in enumerate(zip(steps, codes, strict=False)):
        lines.append(f"step {number}: {json.dumps(step)} -> {code}")
    if case.error is not None:
        lines.append(f"must be refused with {case.error}")
    elif case.want:
        lines.append(f"wanted: {', '.join(case.want)}")
    lines.append(
        f"a port is asked when it claims {case.op}: {', '.join(case.features) or 'no feature needed'}"
    )
    return lines


def describe_tensors(tensors: Tensors) -> list[str]:
    """Name, type and shape; the values as well when they are few."""
    lines = []
    for name, x in sorted(tensors.items()):
        line = f"{name:<12} {x.dtype} {list(x.shape)}"
        if 0 < x.size <= SMALL:
            with np.printoptions(precision=6, suppress=False, linewidth=10_000):
                line += f" = {np.array2string(x, separator=', ')}".replace("\n", "")
        lines.append(line)
    return lines


def describe_results(case: str, path: Path) -> list[str]:
    """How each port did, from a finished report."""
    try:
        report = read_report(path)
    except InvalidReport as error:
        return [f"no results to show: {error}"]
    results = [result for result in report.results if result.case == case]
    if not results:
        return [f"the report of {report.header.date} has no result of this case"]
    lines = [f"results of {report.header.date}"]
    for result in results:
        lines += _describe_result(result)
    return lines


def describe_difference(difference: Difference) -> str:
    """One element, both values."""
    place = f"{difference.tensor}{difference.element or ''}"
    bound = f", bound {difference.bound}" if difference.bound else ""
    return f"{place}: {difference.reason}: expected {difference.expected}, got {difference.got}{bound}"


def _describe_result(result: Result) -> list[str]:
    judgement = result.judgement
    share = ""
    if judgement.outcome == "pass" and (judgement.share or judgement.max_abs):
        share = f"  {show_share(judgement.share)} of its bound, off by at most {judgement.max_abs:.2g}"
        share += f" ({judgement.max_ulp:.3g} ULP)"
    if judgement.published_share is not None:
        share += f"; by the published values: {show_share(judgement.published_share)}"
    name = f"{result.port} {result.variant} {result.dtype}"
    lines = [f"  {name:<28} {judgement.outcome}{share}"]
    if judgement.outcome != "pass":
        lines += [f"      {line}" for line in judgement.message.splitlines()]
        if judgement.first_step is not None:
            lines.append(f"      first step that differs: {describe_difference(judgement.first_step)}")
    return lines


def _speaker(console: Console) -> Any:
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
