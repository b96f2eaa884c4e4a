"""ONNX's vectors as a suite: their number, their translation, both verdicts on an answer, and what they catch."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import fixtures
from conformance.bounds import derive
from conformance.case import Case, Tensors
from conformance.cases.draft import Draft
from conformance.errors import UsageError
from conformance.explain import find_case
from conformance.flags import NOTES
from conformance.judge import compare, judge_published, judge_tensors, judge_twice
from conformance.onnx_suite import attention, suite, vectors
from conformance.onnx_suite.flags import flags_of
from conformance.onnx_suite.vectors import Vector, VectorError, read_vectors
from conformance.oracle import answer
from conformance.ports import read_port
from conformance.realise import realise
from conformance.repository import ROOT
from conformance.run import run_port
from conformance.session import Session

ATTENTION, HALF, WITH_PAST, SOFTMAX = 93, 11, 20, 7
EXECUTED = ATTENTION - HALF + WITH_PAST + SOFTMAX
DRAFTS = [draft for _, draft, _ in suite.translate()]


@cache
def loaded() -> fixtures.LoadedSuite:
    return fixtures.load_folder(suite.ensure_suite(fixtures.CACHE / suite.NAME))


def find(name: str) -> tuple[Case, Tensors, Tensors, Tensors]:
    """Case, inputs, our answers rounded as an honest port's are, and ONNX's."""
    found, case = find_case(name, [loaded()])
    expected, published = found.expected(case, "f32"), found.published(case, "f32")
    assert expected is not None
    assert published is not None
    honest = {n: x.astype(np.float32) if x.dtype.kind == "f" else x for n, x in expected.items()}
    return case, found.inputs(case, "f32"), honest, published


def judge(name: str, got: Tensors, published: Tensors | None = None) -> tuple[str, str]:
    """Outcome and message of both verdicts together."""
    case, inputs, _, theirs = find(name)
    expected = loaded().expected(case, "f32")
    assert expected is not None
    derived = judge_tensors(case, "f32", inputs, expected, got)
    verdict = judge_twice(derived, case, "f32", inputs, published or theirs, got)
    return verdict.outcome, verdict.message


def test_every_vector_is_a_case_or_left_out_with_a_reason() -> None:
    assert len(read_vectors("Attention")) == ATTENTION
    assert Counter(case.op for case in loaded().suite.cases) == {
        "sdpa": ATTENTION - HALF,
        "kv_cache": WITH_PAST,
        "softmax": SOFTMAX,
    }
    left_out = loaded().suite.left_out
    assert len(left_out) == HALF
    assert Counter(reason.split()[2] for reason in left_out.values()) == {"float16,": 6, "bfloat16,": 5}
    assert not set(left_out) & {case.id for case in loaded().suite.cases}
    modes = Counter(case.want[1] for case in loaded().suite.cases if len(case.want) > 1)
    assert modes == {"scores": 3, "capped": 2, "biased": 7, "weights": 5}


def test_every_case_is_executed_and_passes_both_verdicts() -> None:
    """The NumPy port here; `make conform` asks all of them."""
    with Session(read_port(ROOT / "conformance/ports/python.toml")) as session:
        results = run_port(session, [loaded()])
    assert Counter(result.judgement.outcome for result in results) == {"pass": EXECUTED}
    assert all(result.judgement.published_share is not None for result in results)
    assert max(result.judgement.published_share or 0 for result in results) < 1e-2


def test_the_oracle_is_within_onnx_tolerance_of_onnx() -> None:
    shares = []
    for case in loaded().suite.cases:
        expected, published = loaded().expected(case, "f32"), loaded().published(case, "f32")
        assert expected is not None
        assert published is not None
        verdict = judge_published(case, "f32", loaded().inputs(case, "f32"), published, expected)
        assert verdict.outcome == "pass", case.id
        shares.append(verdict.share)
        assert case.published is not None
        assert (case.published.rtol, case.published.atol) == (1e-3, 1e-7)
        for name in set(case.exact) & set(published):  # what is present in a cache is only moved there
            np.testing.assert_array_equal(published[name], expected[name])
    assert 0 < max(shares) < 1e-3


def test_a_suite_that_contradicts_the_oracle_is_not_made() -> None:
    vector = next(v for v in read_vectors("Attention") if v.name == "4d_gqa")
    draft, answers = attention.to_sdpa(vector)
    case, *_ = find(draft.id)
    assert suite.check_agreement(case, draft, answers) < 1e-3
    with pytest.raises(VectorError, match="the oracle disagrees with onnx: output"):
        suite.check_agreement(case, draft, {"output": answers["output"] * np.float32(1.01)})


def test_the_verdicts_are_told_apart() -> None:
    name = "onnx/attention/4d_gqa"
    _, _, honest, published = find(name)
    assert judge(name, honest) == ("pass", "")
    near = {"output": honest["output"] * np.float32(1 + 5e-4)}
    outcome, message = judge(name, near)
    assert outcome == "fail"
    assert message.startswith("the verdicts differ: within onnx 1.23.2's own tolerance")
    assert "not within the derived bound: output[" in message
    outcome, message = judge(name, honest, {"output": published["output"] + np.float32(0.1)})
    assert outcome == "fail"
    assert message.startswith("the verdicts differ: within the derived bound")
    assert "onnx 1.23.2's own tolerance of its values: output[" in message
    outcome, message = judge(name, {"output": honest["output"] + np.float32(0.1)})
    assert outcome == "fail"
    assert message.endswith("nor is it within onnx 1.23.2's own tolerance of its values")
    assert judge(name, {"output": honest["output"][:1]})[1].startswith("output: wrong shape")
    assert judge(name, {})[1].startswith("outputs: expected exactly")


def test_the_mask_is_put_into_our_biased_scores_before_onnx_is_asked() -> None:
    name = "onnx/attention/4d_with_past_and_present_qk_matmul_bias_4d_mask_causal"
    _, _, honest, published = find(name)
    assert np.isfinite(honest["biased"]).all()
    assert np.isneginf(published["biased"]).any()
    assert judge(name, honest)[0] == "pass"
    assert judge(name, honest | {"biased": published["biased"]})[0] == "fail"


def test_what_is_not_translated_is_an_error() -> None:
    plain = read_vectors("Attention")[0]
    for change in (
        {"inputs": plain.inputs | {"sinks": np.zeros(3, np.float32)}},
        {"outputs": plain.outputs | {"lse": plain.outputs["Y"]}},
        {"attributes": {"alibi": 1}},
        {"attributes": {"softmax_precision": 10}},
    ):
        with pytest.raises(VectorError, match=r"4d: (not translated: (sinks|lse|alibi)|softmax_precision)"):
            attention.to_sdpa(replace(plain, **change))


def test_another_version_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vectors, "PINNED", "0.0.1")
    with pytest.raises(fixtures.FixtureError, match=r"expected version 0\.0\.1 .* got 1\.23\.2"):
        suite.ensure_suite(tmp_path / "onnx")
    monkeypatch.setattr(vectors, "PACKAGE", "no-such-package")
    with pytest.raises(fixtures.FixtureError, match=r"`make setup` installs requirements/onnx\.txt"):
        suite.ensure_suite(tmp_path / "onnx")
    assert f"onnx=={vectors.PINNED}" not in (ROOT / "requirements/onnx.txt").read_text()


def test_the_pinned_version_is_the_required_one() -> None:
    assert f"\nonnx=={vectors.PINNED}\n" in (ROOT / "requirements/onnx.txt").read_text()


def test_the_suite_is_made_again_only_when_its_source_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fixtures.CACHE / suite.NAME
    stamp = json.loads((suite.ensure_suite(folder) / "stamp.json").read_text())
    assert stamp["package"] == vectors.PINNED
    made = (folder / "manifest.json").stat().st_mtime_ns
    suite.ensure_suite(folder)
    assert (folder / "manifest.json").stat().st_mtime_ns == made


def test_narrowing_takes_only_the_cases_of_the_op() -> None:
    for op, count in (("softmax", SOFTMAX), ("kv_cache", WITH_PAST), ("sdpa", ATTENTION - HALF)):
        found = {s.suite.suite: s for s in fixtures.load_suites([op])}
        assert len(found["onnx"].suite.cases) == count
        assert {case.op for case in found["onnx"].suite.cases} == {op}
    assert "onnx" not in {s.suite.suite for s in fixtures.load_suites(["mha"])}


def test_explain_says_why_a_vector_is_not_asked() -> None:
    with pytest.raises(UsageError, match="cannot be asked yet: stored in float16"):
        find_case("onnx/attention/4d_fp16", [loaded()])


def test_the_page_names_everything_that_is_translated() -> None:
    text = (ROOT / "docs/onnx.md").read_text()
    for name in attention.KNOWN_INPUTS | attention.KNOWN_OUTPUTS | attention.KNOWN_ATTRIBUTES:
        assert f"`{name}`" in text
    assert f"{EXECUTED} cases in all" in text
    assert f"| {ATTENTION} | {ATTENTION - HALF} |" in text


# What each kind of bug makes of a call: the bug, as another question. None: not for this call.
Question = tuple[dict[str, Any], Tensors]


def misaligned(config: dict[str, Any], inputs: Tensors) -> Question:
    return config | {"q_offset": inputs["k"].shape[2] - inputs["q"].shape[2]}, inputs


def off_by_one(config: dict[str, Any], inputs: Tensors) -> Question:
    return config | {"window": [None if side is None else side + 1 for side in config["window"]]}, inputs


def tiled(config: dict[str, Any], inputs: Tensors) -> Question:
    group = inputs["q"].shape[1] // inputs["k"].shape[1]
    return config, inputs | {name: np.tile(inputs[name], (1, group, 1, 1)) for name in ("k", "v")}


def neighbours(config: dict[str, Any], inputs: Tensors) -> Question:
    return config, inputs | {name: np.roll(inputs[name], 1) for name in ("kv_lengths", "q_offset")}


def capped_mask(config: dict[str, Any], inputs: Tensors) -> Question:
    bias = np.where(np.isneginf(inputs["bias"]), -config["softcap"], inputs["bias"])
    return config, inputs | {"bias": bias.astype(np.float32)}


def scaled_by_values(config: dict[str, Any], inputs: Tensors) -> Question | None:
    if "scale" in config:
        return None
    return config | {"scale": inputs["v"].shape[3] ** -0.5}, inputs


def without(name: str) -> Callable[[dict[str, Any], Tensors], Question]:
    def drop(config: dict[str, Any], inputs: Tensors) -> Question:
        return tuple({k: v for k, v in part.items() if k != name} for part in (config, inputs))  # type: ignore[return-value]

    return drop


BUGS: dict[str, Callable[[dict[str, Any], Tensors], Question | None]] = {
    "BiasIsNotMask": without("bias"),
    "CausalAlignment": misaligned,
    "ChunkedPrefill": lambda config, inputs: (config | {"q_offset": 0}, inputs),
    "GqaTile": tiled,
    "MaskPolarity": lambda config, inputs: (config, inputs | {"mask": ~inputs["mask"]}),
    "RowIndependence": neighbours,
    "SoftcapOrder": capped_mask,
    "ValueDim": scaled_by_values,
    "WindowOffByOne": off_by_one,
}


def caught(draft: Draft, question: Question) -> bool:
    """Whether the answer to another question is out of the derived bound of this one."""
    inputs, expected = realise(draft, "f32")
    assert expected is not None
    bounds = derive(draft.op, draft.config, inputs, "f32")
    wrong = answer(draft.op, *question)
    return any(
        compare(name, "f32", x, wrong[name], bounds[name]).outcome == "fail" for name, x in expected.items()
    )


@pytest.mark.parametrize("flag", BUGS)
def test_a_flagged_case_catches_its_bug(flag: str) -> None:
    flagged = [draft for draft in DRAFTS if draft.op == "sdpa" and flag in draft.flags]
    assert flagged
    for draft in flagged:
        question = BUGS[flag](draft.config, realise(draft, "f32")[0])
        assert question is None or caught(draft, question), draft.id


def test_a_condition_that_vanishes_is_noticed() -> None:
    for draft in (d for d in DRAFTS if d.op == "sdpa" and "MaskComposition" in d.flags):
        inputs, _ = realise(draft, "f32")
        dropped = (without(name) for name in ("causal", "window", "mask", "bias", "kv_lengths"))
        assert any(caught(draft, drop(draft.config, inputs)) for drop in dropped), draft.id


def test_rows_without_a_key_are_found() -> None:
    names = {draft.id for draft in DRAFTS if "FullyMaskedRow" in draft.flags}
    assert {f"onnx/attention/{name}" for name in FULLY_MASKED} <= names
    plain = {"q": np.ones((1, 1, 1, 1)), "k": np.ones((1, 1, 1, 1)), "v": np.ones((1, 1, 1, 1))}
    assert flags_of({}, plain) == ("Published",)
    assert all(set(draft.flags) <= set(NOTES) for draft in DRAFTS)


FULLY_MASKED = (
    "23_boolmask_fullymasked_row_nan_robustness",
    "23_fullymasked_qk_matmul_output_mode3_zero",
    "24_fullymasked_qk_matmul_output_mode3_zero",
    "4d_causal_nonpad_negative_offset_structural_empty",
)


def test_packed_heads_lie_side_by_side() -> None:
    """(B, T, H·n): the second head's numbers follow the first one's."""
    x = np.arange(12, dtype=np.float32).reshape(1, 2, 6)
    vector = Vector("x", 23, {"q_num_heads": 3}, {"Q": x}, {}, 0, 0)
    assert attention.unpack(vector, "Q", "q_num_heads")[0, 1].tolist() == [[2, 3], [8, 9]]
