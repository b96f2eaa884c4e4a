"""Lists of known failures are strict: whatever is not exactly as listed fails, with the edit that mends it."""

from pathlib import Path

import pytest

from conformance.errors import UsageError
from conformance.known_failures import FOLDER, Failure, Verdict, check_lists, judge_results, read_failures
from conformance.outcome import Judgement, Outcome, Result
from conformance.ports import read_ports


def result(case: str, outcome: Outcome, dtype: str = "f32", first: bool = True) -> Result:
    return Result("mine", "s", case, dtype, "naive", Judgement(outcome), first=first)


def judge(results: list[Result], *failures: Failure, **options: bool) -> Verdict:
    return judge_results("mine", results, failures, **{"narrowed": False, **options})


def listed(pattern: str, outcome: Outcome = "fail") -> Failure:
    return Failure(pattern, outcome, "a reason", "a link")


RESULTS = [result("a/1", "pass"), result("a/2", "fail"), result("b/1", "crash"), result("c/1", "unsupported")]


def test_without_a_list_everything_bad_is_unexpected() -> None:
    verdict = judge(RESULTS)
    assert [r.case for r in verdict.unexpected] == ["a/2", "b/1"]
    assert verdict.problems == []


def test_what_is_listed_is_expected() -> None:
    verdict = judge(RESULTS, listed("a/2"), listed("b/*", "crash"))
    assert verdict.unexpected == []
    assert verdict.problems == []
    assert [r.case for r in verdict.expected] == ["a/2", "b/1"]


def test_an_entry_whose_case_passes_must_go() -> None:
    assert judge(RESULTS[:1], listed("a/1")).problems == [
        "mine.toml: failure 'a/1' passes now; delete the entry"
    ]


def test_an_entry_that_matches_nothing_must_go() -> None:
    (problem,) = judge(RESULTS[:1], listed("z/*")).problems
    assert "matches no case" in problem
    assert "delete the entry" in problem


def test_an_entry_that_matches_nothing_may_stay_when_the_run_was_narrowed() -> None:
    assert judge(RESULTS[:1], listed("z/*"), narrowed=True).problems == []


def test_a_wrong_outcome_is_named_and_the_result_is_unexpected() -> None:
    verdict = judge(RESULTS[2:3], listed("b/1"))
    assert [r.case for r in verdict.unexpected] == ["b/1"]
    (problem,) = verdict.problems
    assert "expects fail, got crash for b/1:f32:naive; set outcome = 'crash'" in problem


def test_a_pattern_that_covers_passing_cases_is_too_wide() -> None:
    (problem,) = judge(RESULTS[:2], listed("a/*")).problems
    assert "too wide: 1 of the 2 results that it matches pass (a/1:f32:naive)" in problem
    assert "set pattern to what fails: a/2:f32:naive" in problem


def test_a_pattern_with_a_colon_speaks_of_dtype_and_variant() -> None:
    results = [result("a/1", "fail", "f32"), result("a/1", "pass", "f64")]
    assert judge(results, listed("a/1:f32:*")).problems == []
    assert "too wide" in judge(results, listed("a/1")).problems[0]


def test_an_unsupported_first_variant_is_bad_only_where_it_must_be_supported() -> None:
    results = [result("a/1", "pass"), result("c/1", "unsupported"), result("d/1", "unsupported", first=False)]
    assert judge(results).unexpected == []
    assert [r.case for r in judge(results, must_support=True).unexpected] == ["c/1"]
    assert judge(results, listed("c/*", "unsupported"), must_support=True) == Verdict([], [], results[1:2])


def test_a_list_is_read(tmp_path: Path) -> None:
    text = '[[failure]]\npattern = "a"\noutcome = "timeout"\nreason = "slow"\nlink = "x"\n'
    (tmp_path / "mine.toml").write_text(text)
    assert read_failures("mine", tmp_path) == [Failure("a", "timeout", "slow", "x")]
    assert read_failures("other", tmp_path) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[failure]", "no list of known failures"),
        ('[[failure]]\npattern = "a"\noutcome = "bad"\nreason = "r"\nlink = "l"', "Invalid enum value 'bad'"),
        ('[[failure]]\npattern = "a"\noutcome = "pass"\nreason = "r"\nlink = "l"', "expected one of fail"),
        (
            '[[failure]]\npattern = "a"\noutcome = "fail"\nreason = " "\nlink = "l"',
            "reason: expected some text",
        ),
        ('[[failure]]\npattern = "a"\noutcome = "fail"\nreason = "r"', "missing required field `link`"),
        ('[[failures]]\npattern = "a"', "unknown field `failures`"),
    ],
)
def test_a_broken_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_failures("mine", tmp_path)


def test_a_list_for_no_port_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "gone.toml").write_text("")
    (tmp_path / "mine.toml").write_text("")
    assert check_lists(["mine"], tmp_path) == [
        "gone.toml: no port is called 'gone'; delete the file or rename it"
    ]


def test_the_lists_of_the_projects_own_ports_are_empty() -> None:
    assert FOLDER.is_dir()
    for port in read_ports():
        assert read_failures(port.name) == [] or port.kind == "peer"
