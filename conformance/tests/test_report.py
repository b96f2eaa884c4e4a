"""Reports: only a finished one with results can be read, and it says what was written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.outcome import Judgement, Result
from conformance.report import InvalidReport, PortRecord, ReportWriter, read_report

RESULTS = [
    Result("mine", "s", "s/1", "f32", "naive", Judgement("pass", share=0.25)),
    Result("mine", "s", "s/2", "f32", "naive", Judgement("fail", "off\nby one")),
]


def write(path: Path, results: list[Result] = RESULTS) -> None:
    with ReportWriter(path) as writer:
        writer.header([PortRecord("mine", "Zig", "port")], {"ops": "s"}, {"s": 2})
        writer.results(results)
        writer.footer(["mine s/2:f32:naive"], [], 1.5)


def test_a_report_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl")
    report = read_report(tmp_path / "r.jsonl")
    assert report.results == RESULTS
    assert report.header.narrowing == {"ops": "s"}
    assert report.header.ports[0].language == "Zig"
    assert report.header.machine.numpy
    assert report.footer.counts == {
        "pass": 1, "fail": 1, "error": 0, "unsupported": 0, "crash": 0, "timeout": 0,
    }  # fmt: skip
    assert report.footer.ok is False
    assert report.footer.unexpected == ["mine s/2:f32:naive"]


def test_nothing_unexpected_is_a_pass_and_no_result_is_not(tmp_path: Path) -> None:
    with ReportWriter(tmp_path / "r.jsonl") as writer:
        writer.header([], {}, {})
        writer.results(RESULTS[:1])
        assert writer.footer([], [], 0).ok
    with ReportWriter(tmp_path / "empty.jsonl") as writer:
        writer.header([], {}, {})
        footer = writer.footer([], [], 0)
    assert not footer.ok
    assert footer.problems == ["no case was run"]
    with pytest.raises(InvalidReport, match="no case was run, which is not a pass"):
        read_report(tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: lines[:-1], "the run was cut short"),
        (lambda lines: lines[1:], "expected a header in the first line"),
        (lambda lines: [], "expected a header in the first line"),
        (lambda lines: [*lines[:2], lines[3]], "the footer counts 2 results, the file has 1"),
        (lambda lines: [*lines[:3], lines[0], lines[3]], "one header and one footer"),
        (lambda lines: [*lines[:2], b'{"kind":"result"}', lines[3]], "r.jsonl:3: no line of a report"),
        (lambda lines: [*lines[:2], lines[2][:20], lines[3]], "r.jsonl:3: no line of a report"),
        (
            lambda lines: [lines[0].replace(b'"format":1', b'"format":9'), *lines[1:]],
            "expected format 1, got 9",
        ),
        (lambda lines: [*lines[:2], lines[2].replace(b"fail", b"pass"), lines[3]], "the footer counts"),
    ],
)
def test_a_damaged_report_is_no_report(
    tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]], message: str
) -> None:
    path = tmp_path / "r.jsonl"
    write(path)
    path.write_bytes(b"\n".join(damage(path.read_bytes().splitlines())))
    with pytest.raises(InvalidReport, match=message):
        read_report(path)


def test_a_missing_report_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidReport, match="`conformance run` makes one"):
        read_report(tmp_path / "none.jsonl")


def test_a_new_run_ends_the_old_report_at_once(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl")
    with ReportWriter(tmp_path / "r.jsonl"), pytest.raises(InvalidReport):
        read_report(tmp_path / "r.jsonl")
