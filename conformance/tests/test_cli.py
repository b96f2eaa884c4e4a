"""The command line: exit statuses, messages, and a folder of somebody else's cases from end to end."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance import cli
from conformance.report import read_report

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def conformance(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command as a function: exit status, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["conformance", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def ports_folder(tmp_path: Path) -> Path:
    """A folder of port files with the NumPy reference, under a name of its own."""
    folder = tmp_path / "ports"
    folder.mkdir()
    command = json.dumps([sys.executable, "-m", "rosetta_port.numpy_port"])
    (folder / "mine.toml").write_text(
        f'name = "mine"\nlanguage = "Python"\nkind = "port"\ncommand = {command}\n'
    )
    return folder


def write_case(folder: Path, value: float) -> Path:
    """One case written by hand: weights 1/3 and 2/3, so 3 and 6 give 5."""
    folder.mkdir(exist_ok=True)
    ln2 = 0.6931471805599453
    case = {
        "id": "mine/first",
        "op": "sdpa",
        "config": {"scale": 1},
        "inputs": {"q": [[[[1]]]], "k": [[[[0], [ln2]]]], "v": [[[[3], [6]]]]},
        "expected": {"output": [[[[value]]]]},
        "note": "one third and two thirds",
    }
    (folder / "first.case.json").write_text(json.dumps(case))
    return folder


def test_help_lists_every_command(conformance: Run) -> None:
    status, out, _ = conformance("--help")
    assert status == 0
    for command in ("fixtures", "ports", "run", "bench", "compare", "site", "sidebyside", "explain"):
        assert command in out
        status, out_of_command, _ = conformance(command, "--help")
        assert status == 0
        assert "Example" in out_of_command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--ports", "pyton"], "no port is called 'pyton' (did you mean 'python'?)"),
        (["run", "--ops", "sdpb"], "sdpb"),
        (["run", "--dtype", "f8"], "no dtype is called 'f8'"),
        (["run", "--cases", "/no/such/folder"], "/no/such/folder: no such folder"),
        (["run", "--match", "no-such-case", "--ports", "python"], "no case is left to run"),
        (["explain", "sdpa/gqa/by-hand-62"], "sdpa/gqa/by-hand-6-2"),
        (["ports", "--ports-dir", "/no/such/folder"], "expected at least one port file"),
        (["run", "--no-such-option"], "No such option"),
        (["dance"], "No such command"),
    ],
)
def test_wrong_use_is_status_2_and_one_clear_message(
    conformance: Run, arguments: list[str], message: str
) -> None:
    status, _, err = conformance(*arguments)
    assert status == 2
    assert message in err
    assert "Traceback" not in err


def test_ports_are_listed(conformance: Run, ports_folder: Path) -> None:
    status, out, _ = conformance("ports", "--ports-dir", str(ports_folder), "--start")
    assert status == 0
    assert "mine         port  Python" in out
    assert "sdpa: naive, flash, split, blocked in f32, f64, f16, bf16; causal" in out


def test_somebody_elses_case_passes(conformance: Run, ports_folder: Path, tmp_path: Path) -> None:
    cases, report = write_case(tmp_path / "cases", 5.0), tmp_path / "report.jsonl"
    where = ["--cases", str(cases), "--ports-dir", str(ports_folder), "--report", str(report)]
    status, out, _ = conformance("run", *where)
    assert status == 0, out
    assert "4 results: 4 pass; all is well" in out
    assert read_report(report).header.narrowing == {"cases": "cases"}
    status, out, _ = conformance("explain", "mine/first", "--cases", str(cases), "--report", str(report))
    assert status == 0
    assert "one third and two thirds" in out
    assert 'config {"scale":' in out
    assert "[[[[3.],   [6.]]]]" in out
    assert "mine naive f32               pass" in out


def test_somebody_elses_case_fails(conformance: Run, ports_folder: Path, tmp_path: Path) -> None:
    cases = write_case(tmp_path / "cases", 5.5)
    where = ["--cases", str(cases), "--ports-dir", str(ports_folder), "--report", str(tmp_path / "r.jsonl")]
    status, out, _ = conformance("run", *where)
    assert status == 1
    assert "fail: mine mine/first:f32:naive" in out
    assert "expected 5.5, got 5" in out


def test_explain_tells_flags_config_and_values(conformance: Run, tmp_path: Path) -> None:
    status, out, _ = conformance("explain", "sdpa/gqa/by-hand-6-2", "--report", str(tmp_path / "none.jsonl"))
    assert status == 0
    assert "GqaTile: KV heads tiled" in out
    assert "harm: most query heads" in out
    assert "seen: https://" in out
    assert "wanted: output, weights, lse" in out
    assert "no results to show" in out


def test_explain_shows_a_script_step_by_step(conformance: Run, tmp_path: Path) -> None:
    none = str(tmp_path / "none.jsonl")
    status, out, _ = conformance("explain", "kv_cache/failure/capacity", "--report", none)
    assert status == 0
    assert "-> capacity_exceeded" in out
