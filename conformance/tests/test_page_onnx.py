"""The table of ONNX's vectors: counted from the first variant, ports and peers side by side."""

from pathlib import Path

from conformance.outcome import Judgement, Outcome, Result
from conformance.page_onnx import view_onnx
from conformance.report import PortRecord, Report, ReportWriter, read_report


def report(path: Path, port: str, kind: str, outcomes: dict[str, Outcome]) -> Report:
    results = [
        Result(port, "onnx", case, "f32", "naive", Judgement(outcome)) for case, outcome in outcomes.items()
    ]
    results.append(Result(port, "onnx", "onnx/attention/a", "f32", "fast", Judgement("fail"), first=False))
    results.append(Result(port, "sdpa", "sdpa/other/x", "f32", "naive", Judgement("pass")))
    with ReportWriter(path) as writer:
        writer.header([PortRecord(port, "C++", kind)], {}, {"onnx": len(outcomes)})
        writer.results(results)
        writer.footer([], [], 1.0)
    return read_report(path)


def test_ports_and_peers_are_counted_by_operator(tmp_path: Path) -> None:
    ours = report(
        tmp_path / "a.jsonl",
        "rust",
        "port",
        {"onnx/attention/a": "pass", "onnx/attention/b": "pass", "onnx/gelu/x": "pass"},
    )
    theirs = report(
        tmp_path / "b.jsonl",
        "ort",
        "peer",
        {"onnx/attention/a": "pass", "onnx/attention/b": "fail", "onnx/gelu/x": "unsupported"},
    )
    view = view_onnx([ours, theirs])
    assert view is not None
    assert [(column.name, column.kind) for column in view.columns] == [("rust", "port"), ("ort", "peer")]
    assert view.rows == [("attention", 2, [2, 1]), ("gelu", 1, [1, None])]
    assert (view.totals, view.vectors) == ([3, 1], 3)


def test_without_the_suite_there_is_no_table() -> None:
    assert view_onnx([]) is None
