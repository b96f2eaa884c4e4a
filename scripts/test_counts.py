"""Reads from the output of each test runner how many tests passed and failed, and which were skipped.

Every function takes the text of the runner's log and the path of its report file, of which it uses one.
A result that is not there is a ValueError: a runner that says nothing has not run.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree


@dataclass
class Counts:
    """What a runner counted. Skipped tests have names, since each needs an entry. note: what else to say."""

    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)
    note: str = ""


def plain(text: str, _: Path) -> Counts:
    """The last line of the form `N passed, N failed`, with `, N skipped` or without."""
    found = re.findall(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?", text)
    if not found:
        raise ValueError("no line `N passed, N failed`")
    passed, failed, skipped = found[-1]
    return Counts(int(passed), int(failed), ["(unnamed)"] * int(skipped or 0))


def junit(_: str, report: Path) -> Counts:
    """The XML report that pytest writes. An expected failure counts as skipped there."""
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except ElementTree.ParseError as error:
        raise ValueError(f"{report.name}: {error}") from None
    counts = Counts()
    for case in cases:
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            counts.failed += 1
        elif "skipped" in kinds:
            counts.skipped.append(f"{case.get('classname', '')}::{case.get('name', '')}")
        else:
            counts.passed += 1
    return counts


def cargo(text: str, _: Path) -> Counts:
    """The sum over the test binaries of a workspace, the examples in its documentation among them."""
    results = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", text, re.MULTILINE)
    if not results:
        raise ValueError("no line `test result:`")
    ignored = re.findall(r"^test (.+) \.\.\. ignored", text, re.MULTILINE)
    return Counts(sum(int(r[0]) for r in results), sum(int(r[1]) for r in results), ignored)


def node(text: str, _: Path) -> Counts:
    """The summary of Node's test runner in its TAP form."""
    numbers = {word: int(number) for word, number in re.findall(r"^# (\w+) (\d+)$", text, re.MULTILINE)}
    if not numbers.keys() >= {"pass", "fail", "cancelled", "skipped", "todo"}:
        raise ValueError("no summary of Node's test runner (--test-reporter=tap)")
    names = re.findall(r"^\s*(?:not )?ok \d+ - (.+?) # (?:SKIP|TODO)", text, re.MULTILINE)
    return Counts(numbers["pass"], numbers["fail"] + numbers["cancelled"], names)


def conformance(_: str, report: Path) -> Counts:
    """The footer of a conformance report: what it did not expect has failed.

    What a variant does not claim is not skipped: the run has seen to it that the readable one answers it.
    """
    footer = json.loads(report.read_text().splitlines()[-1])
    if footer.get("kind") != "footer":
        raise ValueError(f"{report.name} ends without its footer")
    others = [f"{n} {outcome}" for outcome, n in footer["counts"].items() if n and outcome != "pass"]
    failed = len(footer["unexpected"]) + len(footer["problems"])
    return Counts(footer["counts"]["pass"], failed, note=", ".join(others))
