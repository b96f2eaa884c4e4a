"""The suites themselves: ids, coverage, what is committed, and suites that somebody else made."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from conformance import cases, fixtures
from conformance.case import encode_suite
from conformance.cases.draft import Draft
from conformance.flags import NOTES
from conformance.handmade import HandmadeError
from conformance.inputs import Draw
from conformance.realise import write_unaligned
from conformance.tensors import write_tensors

SUITES = {name: fixtures.load_suite(name).suite for name in cases.SUITES}
ALL = [case for suite in SUITES.values() for case in suite.cases]


def test_enough_cases_with_unique_ids_and_notes() -> None:
    assert len(ALL) >= 300
    assert len({case.id for case in ALL}) == len(ALL)
    assert all(case.note for case in ALL)
    assert all(case.flags and set(case.flags) <= set(NOTES) for case in ALL)
    assert all(case.id.startswith(f"{name}/") for name, suite in SUITES.items() for case in suite.cases)


def test_every_flag_but_those_of_later_suites_is_used() -> None:
    used = {flag for case in ALL for flag in case.flags}
    assert set(NOTES) - used == {"Real", "Published"}  # made from packages, not committed


def test_every_error_code_has_cases() -> None:
    codes = {case.error for case in ALL} | {code for case in ALL for code in case.steps or ()}
    assert codes >= {
        "shape_mismatch",
        "dtype_mismatch",
        "invalid_config",
        "capacity_exceeded",
        "invalid_request",
    }


@pytest.mark.parametrize(("axis", "limits"), [("q", 2), ("k", 2), ("k", 3), ("v", 3)])
def test_sizes_around_the_vector_widths(axis: str, limits: int) -> None:
    sizes = {
        case.shapes[axis][limits] for case in SUITES["sdpa"].cases if len(case.shapes.get(axis, ())) == 4
    }
    assert {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65} <= sizes


def test_draws_are_the_same_everywhere() -> None:
    """SHAKE-256 of the name: these numbers hold in every version of everything."""
    first = Draw("rosetta").uniform(3)
    assert first.tolist() == FIRST_DRAWS
    assert Draw("rosetta").normal(2, 2).shape == (2, 2)
    many = Draw("many").normal(20000)
    assert abs(many.mean()) < 0.03
    assert abs(many.var() - 1) < 0.03


FIRST_DRAWS = [0.1567301750983252, 0.414291632537377, 0.07646957209478233]


def test_what_is_committed_is_what_the_code_makes(tmp_path: Path) -> None:
    """One suite here; `conformance fixtures --check` does all of them."""
    suite = fixtures.load_suite("mha")
    drafts = {draft.id: draft for draft in cases.drafts("mha")}
    assert (
        max(fixtures._check_case(suite, case, drafts[case.id], tmp_path) for case in suite.suite.cases) <= 1
    )


def test_a_changed_input_or_answer_is_noticed(tmp_path: Path) -> None:
    suite = fixtures.load_suite("softmax")
    case = suite.suite.cases[0]
    draft = next(iter(cases.drafts("softmax")))
    other = Draft(
        draft.id, draft.op, {"x": draft.inputs["x"] + 1}, want=draft.want, flags=draft.flags, note=draft.note
    )
    with pytest.raises(fixtures.FixtureError, match="other inputs"):
        fixtures._check_case(suite, case, other, tmp_path)
    with pytest.raises(fixtures.FixtureError, match="another case"):
        fixtures._check_case(suite, msgspec.structs.replace(case, note="changed"), draft, tmp_path)


def test_an_unaligned_file_is_legal_and_awkward(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    path = tmp_path / "x.safetensors"
    write_unaligned(path, {"x": np.arange(6, dtype=np.float64).reshape(2, 3)})
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 7
    loaded = load_file(path)
    assert loaded["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["a_scalar"].shape == ()
    assert loaded["an_empty_one"].shape == (0, 3)


def test_writing_keeps_logical_order_and_rank(tmp_path: Path) -> None:
    """safetensors' own writer takes C order for granted (FileLayout)."""
    from safetensors.numpy import load_file

    path = tmp_path / "x.safetensors"
    write_tensors(
        path,
        {
            "f": np.asfortranarray([[1, 2, 3], [4, 5, 6.0]]),
            "s": np.arange(12.0).reshape(3, 4)[:, ::2],
            "r": np.array(3.0),
        },
    )
    loaded = load_file(path)
    assert loaded["f"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert loaded["s"].tolist() == [[0, 2], [4, 6], [8, 10]]
    assert loaded["r"].shape == ()


HAND = {
    "id": "mine/first",
    "op": "sdpa",
    "config": {"scale": 1},
    "inputs": {"q": [[[[1]]]], "k": [[[[0], [1]]]], "v": [[[[3], ["inf"]]]], "mask": [True, False]},
    "expected": {"output": [[[[3]]]]},
    "dtypes": ["f32", "f64"],
}


def test_a_suite_made_by_hand(tmp_path: Path) -> None:
    (tmp_path / "one.case.json").write_text(json.dumps(HAND))
    (tmp_path / "two.case.json").write_text(
        json.dumps({k: v for k, v in HAND.items() if k != "expected"} | {"id": "mine/second"})
    )
    suite = fixtures.load_folder(tmp_path)
    assert [case.id for case in suite.suite.cases] == ["mine/first", "mine/second"]
    for case in suite.suite.cases:
        for dtype in ("f32", "f64"):
            expected = suite.expected(case, dtype)
            assert expected is not None
            assert expected["output"].tolist() == [[[[3]]]]
    assert suite.suite.cases[0].features == ["mask", "scale"]
    inputs = suite.inputs(suite.suite.cases[0], "f32")
    assert inputs["q"].dtype == np.float32
    assert inputs["mask"].dtype == np.bool_
    assert inputs["v"][0, 0, 1, 0] == np.inf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "one.case.json"),
        ('{"id": "x"}', "missing required field"),
        (json.dumps(HAND | {"colour": 1}), "colour"),
        (json.dumps(HAND | {"dtypes": ["f8"]}), "f8"),
    ],
)
def test_a_broken_hand_made_case_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "one.case.json").write_text(text)
    with pytest.raises(HandmadeError, match=message):
        fixtures.load_folder(tmp_path)


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"suite": 1}')
    with pytest.raises(fixtures.FixtureError, match=r"manifest\.json"):
        fixtures.load_folder(tmp_path)


@pytest.mark.parametrize("name", ["../out", "a b", "/a", "a/", ""])
def test_an_id_that_is_no_path_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "one.case.json").write_text(json.dumps(HAND | {"id": name}))
    with pytest.raises(HandmadeError, match="id: expected words"):
        fixtures.load_folder(tmp_path)


def test_an_id_that_comes_twice_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.case.json").write_text(json.dumps(HAND))
    with pytest.raises(HandmadeError, match="a second time"):
        fixtures.load_folder(tmp_path)


def test_files_of_a_foreign_manifest_are_checked(tmp_path: Path) -> None:
    (tmp_path / "hand").mkdir()
    (tmp_path / "hand/one.case.json").write_text(json.dumps(HAND))
    made = fixtures.load_folder(tmp_path / "hand")
    case = made.suite.cases[0]
    files = case.files["f32"]
    foreign = msgspec.structs.replace(
        made.suite,
        cases=[
            msgspec.structs.replace(
                case, files={"f32": msgspec.structs.replace(files, sha256={"inputs": "0"})}
            )
        ],
    )
    (tmp_path / "manifest.json").write_bytes(encode_suite(foreign))
    with pytest.raises(fixtures.FixtureError, match="not there"):
        fixtures.load_folder(tmp_path)
    for name in (files.inputs, str(files.expected)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(made.path(name).read_bytes())
    with pytest.raises(fixtures.FixtureError, match="not the file"):
        fixtures.load_folder(tmp_path)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HandmadeError, match="neither"):
        fixtures.load_folder(tmp_path)


def test_narrowing_by_op() -> None:
    assert {s.suite.suite for s in fixtures.load_suites(["softmax"])} == {"softmax", "onnx"}
    with pytest.raises(fixtures.FixtureError, match="ops: expected some of"):
        fixtures.load_suites(["softmin"])
