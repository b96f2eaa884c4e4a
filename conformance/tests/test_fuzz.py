"""The campaign finds what is wrong, makes it small, and writes a case that shows it again; an honest port passes."""

import io
import sys
from pathlib import Path

import pytest
from fakes import fake_port
from rich.console import Console

from conformance.conform import Options, run_conformance
from conformance.errors import UsageError
from conformance.fixtures import load_folder
from conformance.fuzz.campaign import QUESTIONS, WEIGHTS, Tally, run_campaign, share_out
from conformance.fuzz.command import run_fuzz
from conformance.oracle import ORACLES
from conformance.outcome import Result
from conformance.ports import Port
from conformance.questions import Question
from conformance.run import Asker, answer_question
from conformance.session import Session

LIARS = Path(__file__).parent / "liars"
SEED = 3


def port(script: str) -> Port:
    return Port(
        name=script, language="Python", kind="port", command=[sys.executable, str(LIARS / f"{script}.py")]
    )


def campaign(script: str, ops: list[str], count: int, folder: Path) -> Tally:
    return run_campaign([port(script)], ops, count, SEED, folder, Console(file=io.StringIO()))


def test_every_op_of_the_oracle_is_asked_about() -> None:
    assert set(QUESTIONS) == {*ORACLES, "kv_cache"}
    assert set(WEIGHTS) <= set(QUESTIONS)


def test_an_honest_port_is_asked_good_and_bad_questions_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def ask(session: Session, asker: Asker, question: Question) -> Result:
        result = answer_question(session, asker, question)
        if result.judgement.outcome == "unsupported":
            refused.append((question.variant, "dropout" in question.case.config, result.judgement.message))
        return result

    monkeypatch.setattr("conformance.fuzz.campaign.answer_question", ask)
    tally = campaign("honest", list(QUESTIONS), 150, tmp_path)
    assert [str(found) for found in tally.found] == []
    assert set(tally.questions) == set(QUESTIONS)
    assert tally.errors > 0
    assert set(tally.answers) <= {"pass", "unsupported"}
    assert set(refused) <= {("blocked", True, "dropout")}
    assert tally.answers["unsupported"] == len(refused)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("script", "op"),
    [
        ("softcap_after_mask", "sdpa"),
        ("window_off_by_one", "sdpa"),
        ("lse_log2", "softmax"),
        ("stale_cache", "kv_cache"),
        ("wrong_code", "sdpa"),
    ],
)
def test_a_liar_is_found_and_its_case_fails_again(script: str, op: str, tmp_path: Path) -> None:
    tally = campaign(script, [op], 400, tmp_path)
    assert [found.draft.op for found in tally.found] == [op]
    (folder,) = tally.folders
    suites = [load_folder(folder)]
    options = Options(
        protocol=False,
        metamorphic=False,
        sentences=False,
        known_failures=None,
        report=tmp_path / "report.jsonl",
    )
    again = run_conformance([port(script)], suites, options, Console(file=io.StringIO()))
    assert not again.ok
    assert run_conformance([port("honest")], suites, options, Console(file=io.StringIO())).ok


def test_what_is_found_is_small(tmp_path: Path) -> None:
    (found,) = campaign("window_off_by_one", ["sdpa"], 400, tmp_path).found
    assert "window" in found.draft.config
    assert not {"mask", "bias", "sinks", "kv_lengths"} & set(found.draft.inputs)
    assert sum(x.size for x in found.draft.inputs.values()) <= 24


def test_the_same_seed_asks_the_same_questions(tmp_path: Path) -> None:
    first, second = (campaign("honest", ["rope", "sparse"], 30, tmp_path) for _ in range(2))
    assert (first.questions, first.answers, first.errors) == (second.questions, second.answers, second.errors)


def test_the_questions_are_shared_out() -> None:
    shares = share_out(1000, list(QUESTIONS))
    assert 950 <= sum(shares.values()) <= 1050
    assert shares["sdpa"] == max(shares.values())
    assert share_out(1, ["gelu", "sdpa"]) == {"gelu": 1, "sdpa": 1}


def test_the_command_says_seed_and_count(tmp_path: Path) -> None:
    said = io.StringIO()
    console = Console(file=said, width=200)
    assert run_fuzz([port("honest")], ["gelu"], 20, SEED, tmp_path / "out", console) == 0
    assert f"seed {SEED}" in said.getvalue()
    assert "0 disagreements" in said.getvalue()
    assert run_fuzz([port("lse_log2")], ["softmax"], 200, SEED, tmp_path / "out", console) == 1
    assert "conformance run --cases" in said.getvalue()
    (tmp_path / "out/mine-1").mkdir()
    (tmp_path / "out/mine-1/manifest.json").touch()
    assert run_fuzz([port("honest")], ["gelu"], 20, SEED, tmp_path / "out", console) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == [
        "mine-1"
    ]  # what it found is gone, no more
    with pytest.raises(UsageError, match="sdpb"):
        run_fuzz([port("honest")], ["sdpb"], 20, SEED, tmp_path / "out", console)


def test_a_campaign_in_which_nobody_answered_is_no_pass(tmp_path: Path) -> None:
    said = io.StringIO()
    alone = fake_port(tmp_path, "for request in requests():\n    say(ok(request))")  # it claims softmax alone
    assert run_fuzz([alone], ["rope"], 5, SEED, tmp_path / "out", Console(file=said, width=200)) == 1
    assert "nothing was asked" in said.getvalue()
