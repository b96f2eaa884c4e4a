"""A whole run: several ports, a report, a verdict, and what is printed."""

import io
from pathlib import Path

import pytest
from fakes import fake_port
from rich.console import Console
from test_run import ANSWER_ALL, QUICK, RIGHT, case, make_suite

from conformance.conform import Options, run_conformance
from conformance.errors import UsageError
from conformance.explain import describe_results
from conformance.ports import Port
from conformance.questions import Narrowing
from conformance.report import Footer, read_report

WRONG_IN_B = """
for request in requests():
    if request["case"] == "b":
        KNOWN["output"][0, 0] += 1
    say(answer(request))
"""


def conform(folder: Path, *ports: Port, **options: object) -> tuple[Footer, str]:
    suite = make_suite(folder, case("a"), case("b"))
    out = io.StringIO()
    defaults = {
        "known_failures": folder / "known",
        "ports_folder": folder / "none",
        "protocol": False,
        "metamorphic": False,
    }
    chosen = Options(report=folder / "report.jsonl", timeouts=QUICK, **{**defaults, **options})  # type: ignore[arg-type]
    (folder / "known").mkdir(exist_ok=True)
    footer = run_conformance(ports, [suite], chosen, Console(file=out, width=200))
    return footer, out.getvalue()


def test_a_run_of_two_ports_is_reported_in_order(tmp_path: Path) -> None:
    slow = fake_port(tmp_path, RIGHT + ANSWER_ALL.replace("say", "time.sleep(0.2); say"), "slow")
    fast = fake_port(tmp_path, RIGHT + ANSWER_ALL, "fast")
    footer, text = conform(tmp_path, slow, fast)
    assert footer.ok
    report = read_report(tmp_path / "report.jsonl")
    assert [(r.port, r.case) for r in report.results] == [
        ("slow", "a"),
        ("slow", "b"),
        ("fast", "a"),
        ("fast", "b"),
    ]
    assert [p.start is not None for p in report.header.ports] == [True, True]
    assert report.header.suites == {"mine": 2}
    assert text.splitlines()[0].startswith("slow         2 pass (")


def test_a_failure_is_printed_with_its_first_step_and_explained(tmp_path: Path) -> None:
    footer, text = conform(tmp_path, fake_port(tmp_path, RIGHT + WRONG_IN_B))
    assert not footer.ok
    assert footer.unexpected == ["fake b:f32:naive"]
    assert "fail: fake b:f32:naive" in text
    assert "output[0, 0]" in text
    assert "first step that differs: output" in text
    lines = "\n".join(describe_results("b", tmp_path / "report.jsonl"))
    assert "fake naive f32" in lines
    assert "first step that differs: output[0, 0]" in lines
    assert "has no result of this case" in describe_results("x", tmp_path / "report.jsonl")[0]
    assert "no results to show" in describe_results("x", tmp_path / "none.jsonl")[0]


def test_a_known_failure_makes_the_run_pass_until_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "known").mkdir()
    entry = '[[failure]]\npattern = "b"\noutcome = "fail"\nreason = "r"\nlink = "l"\n'
    (tmp_path / "known/fake.toml").write_text(entry)
    ports_folder = tmp_path / "ports"
    ports_folder.mkdir()
    (ports_folder / "p.toml").write_text('name = "p"\nlanguage = "X"\nkind = "port"\ncommand = ["x"]\n')
    footer, _ = conform(tmp_path, fake_port(tmp_path, RIGHT + WRONG_IN_B), ports_folder=ports_folder)
    assert footer.ok
    footer, text = conform(tmp_path, fake_port(tmp_path, RIGHT + ANSWER_ALL), ports_folder=ports_folder)
    assert not footer.ok
    assert footer.unexpected == []
    assert "problem: fake.toml: failure 'b' passes now; delete the entry" in text


def test_a_port_that_claims_nothing_of_this_is_no_pass(tmp_path: Path) -> None:
    footer, _ = conform(tmp_path, fake_port(tmp_path, "CLAIMS.clear()\n" + ANSWER_ALL))
    assert not footer.ok
    assert footer.problems == ["fake: no case was asked, because it claims none of them"]


def test_the_checks_of_the_protocol_alone_are_no_pass(tmp_path: Path) -> None:
    port, nothing = fake_port(tmp_path, RIGHT + ANSWER_ALL), Narrowing(variants=["no-such"])
    footer, _ = conform(tmp_path, port, protocol=True, narrowing=nothing)
    assert footer.results > 0
    assert "fake: no case was asked, because it claims none of them" in footer.problems


def test_what_a_port_lacks_fails_where_it_must_support_it(tmp_path: Path) -> None:
    body = 'CLAIMS["softmax"]["features"].clear()\n'
    suite_port = fake_port(tmp_path, RIGHT + body + ANSWER_ALL)
    footer, _ = conform(tmp_path, suite_port, must_support=True)
    assert footer.unexpected == ["fake a:f32:naive", "fake b:f32:naive"]


def test_the_checks_of_the_protocol_are_part_of_a_run(tmp_path: Path) -> None:
    footer, _ = conform(tmp_path, fake_port(tmp_path, RIGHT + ANSWER_ALL), protocol=True)
    assert "fake protocol/not-json:-:-" in footer.unexpected


def test_a_port_that_does_not_start_is_said_once(tmp_path: Path) -> None:
    footer, text = conform(tmp_path, fake_port(tmp_path, "sys.exit('no licence')"))
    assert footer.unexpected == ["fake a:f32:-", "fake b:f32:-"]
    assert text.count("could not be started: it ended with exit status 1") == 1
    assert "... and the same of 1 more" in text


def test_a_run_without_a_case_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no case is left to run"):
        conform(tmp_path, fake_port(tmp_path, ANSWER_ALL), narrowing=Narrowing(match="nothing"))


def test_a_run_that_is_interrupted_leaves_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("conformance.conform.judge_results", interrupt)
    with pytest.raises(KeyboardInterrupt):
        conform(tmp_path, fake_port(tmp_path, RIGHT + ANSWER_ALL))
    with pytest.raises(UsageError, match="cut short"):
        read_report(tmp_path / "report.jsonl")
