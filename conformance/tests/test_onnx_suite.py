"""ONNX's vectors as a suite: their number, their translation, both verdicts on an answer, and what they catch."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from conformance import fixtures
from conformance.bounds import derive, round_to_half
from conformance.case import Case
from conformance.cases.draft import Draft
from conformance.errors import UsageError
from conformance.explain import find_case
from conformance.flags import NOTES
from conformance.judge import compare, judge_published, judge_tensors, judge_twice
from conformance.onnx_suite import OPS, suite, vectors
from conformance.onnx_suite.flags import attention_flags
from conformance.onnx_suite.translate import TRANSLATORS
from conformance.onnx_suite.vectors import PREFIXES, VectorError, read_vectors
from conformance.oracle import answer
from conformance.ports import read_port
from conformance.realise import realise
from conformance.repository import ROOT
from conformance.run import run_port
from conformance.session import Session
from conformance.tensors import Tensors

# How many vectors ONNX publishes, by operator, and how many of Attention's have a past.
VECTORS = {
    "Attention": 93,
    "RotaryEmbedding": 8,
    "TensorScatter": 3,
    "LinearAttention": 14,
    "LayerNormalization": 19,
    "RMSNormalization": 19,
    "Gelu": 4,
    "SwiGLU": 3,
    "Softmax": 7,
}
WITH_PAST = 21
EXECUTED = sum(VECTORS.values()) + WITH_PAST
DRAFTS = [draft for _, draft, _ in suite.make_drafts()]


@cache
def loaded() -> fixtures.LoadedSuite:
    return fixtures.load_folder(suite.ensure_suite(fixtures.CACHE / suite.NAME))


def find(name: str) -> tuple[Case, Tensors, Tensors, Tensors]:
    """Case, inputs, our answers rounded as an honest port's are, and ONNX's."""
    found, case = find_case(name, [loaded()])
    (dtype,) = case.files
    expected, published = found.expected(case, dtype), found.published(case, dtype)
    assert expected is not None
    assert published is not None
    return case, found.inputs(case, dtype), suite.rounded(expected, dtype), published


def judge(name: str, got: Tensors, published: Tensors | None = None) -> tuple[str, str]:
    """Outcome and message of both verdicts together."""
    case, inputs, _, theirs = find(name)
    derived = judge_tensors(case, "f32", inputs, expected_of(case), got)
    verdict = judge_twice(derived, case, "f32", inputs, published or theirs, got)
    return verdict.outcome, verdict.message


def test_every_vector_is_a_case() -> None:
    cases = loaded().suite.cases
    assert {operator: len(read_vectors(operator)) for operator in TRANSLATORS} == VECTORS
    prefixes = Counter(case.id.split("/")[1] for case in cases)
    assert prefixes == {PREFIXES[operator]: n for operator, n in VECTORS.items()} | {"cache": WITH_PAST}
    assert len({case.id for case in cases}) == len(cases) == EXECUTED
    assert not loaded().suite.left_out
    assert Counter(dtype for case in cases for dtype in case.files) == {"f32": 177, "f16": 9, "bf16": 5}
    assert {case.op for case in cases} == set(OPS)
    modes = Counter(case.want[1] for case in cases if case.op == "sdpa" and len(case.want) > 1)
    assert modes == {"scores": 3, "capped": 2, "biased": 7, "weights": 6}


def test_every_case_is_executed_and_passes_both_verdicts() -> None:
    """The NumPy port here; `make conform` asks all of them."""
    with Session(read_port(ROOT / "conformance/ports/python.toml")) as session:
        results = [result for result in run_port(session, [loaded()]) if result.first]
    assert Counter(result.judgement.outcome for result in results) == {"pass": EXECUTED}
    assert all(result.judgement.published_share is not None for result in results)
    shares = [result.judgement.published_share or 0 for result in results if result.dtype == "f32"]
    assert max(shares) < 0.1


def test_the_oracle_is_within_onnx_tolerance_of_onnx() -> None:
    shares: dict[str, list[float]] = {"f32": [], "f16": [], "bf16": []}
    for case in loaded().suite.cases:
        ((dtype, _),) = case.files.items()
        _, inputs, honest, published = find(case.id)
        verdict = judge_published(case, dtype, inputs, published, honest)
        assert verdict.outcome == "pass", case.id
        shares[dtype].append(verdict.share)
        assert case.published is not None
        assert case.published.atol == 1e-7
        assert case.published.rtol == (2**-6 if dtype == "bf16" else 1e-3)
        for name in set(case.exact) & set(published):  # what is present in a cache is only moved there
            np.testing.assert_array_equal(published[name], honest[name])
    assert 0 < max(shares["f32"]) < 0.1
    assert all(max(shares[dtype]) < 1 for dtype in ("f16", "bf16"))


def test_onnx_computes_halves_in_halves() -> None:
    """Which is why its values of ten of Attention's eleven are beyond our bound, and ours within its tolerance."""
    beyond = set()
    for case in loaded().suite.cases:
        (dtype,) = case.files
        if case.op == "sdpa" and dtype != "f32":
            _, inputs, _, published = find(case.id)
            verdict = judge_tensors(case, dtype, inputs, expected_of(case), published)
            if verdict.outcome == "fail":
                assert verdict.max_ulp < 2, (
                    case.id
                )  # more than a step of the type, where half a step is allowed
                beyond.add(case.id)
    assert len(beyond) == 10
    assert beyond == {draft.id for draft in DRAFTS if "HalfInside" in draft.flags and draft.op == "sdpa"}


def expected_of(case: Case) -> Tensors:
    (dtype,) = case.files
    expected = loaded().expected(case, dtype)
    assert expected is not None
    return expected


def test_a_suite_that_contradicts_the_oracle_is_not_made() -> None:
    vector = next(v for v in read_vectors("Attention") if v.name == "4d_gqa")
    draft, answers = suite.to_draft(vector)
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
    for op, count in (("softmax", 7), ("kv_cache", WITH_PAST), ("sdpa", 93)):
        found = {s.suite.suite: s for s in fixtures.load_suites([op])}
        assert len(found["onnx"].suite.cases) == count
        assert {case.op for case in found["onnx"].suite.cases} == {op}
    assert "onnx" not in {s.suite.suite for s in fixtures.load_suites(["mha"])}


def test_explain_says_why_a_case_is_not_asked() -> None:
    folder = loaded()
    left_out = msgspec.structs.replace(folder.suite, left_out={"onnx/attention/new": "stored in float8"})
    with pytest.raises(UsageError, match="cannot be asked yet: stored in float8"):
        find_case("onnx/attention/new", [replace(folder, suite=left_out)])


def test_the_page_says_how_many() -> None:
    text = (ROOT / "docs/onnx.md").read_text()
    assert f"{EXECUTED} cases in all" in text
    for operator, count in VECTORS.items():
        assert f"| {operator} " in text
        assert f"`onnx/{PREFIXES[operator]}/…`" in text
        assert f"| {count} |" in text


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
    return config, inputs | {"bias": bias.astype(inputs["bias"].dtype)}


def scaled_by_values(config: dict[str, Any], inputs: Tensors) -> Question | None:
    if "scale" in config:
        return None
    return config | {"scale": inputs["v"].shape[3] ** -0.5}, inputs


def without(name: str) -> Callable[[dict[str, Any], Tensors], Question]:
    def drop(config: dict[str, Any], inputs: Tensors) -> Question:
        return tuple({k: v for k, v in part.items() if k != name} for part in (config, inputs))  # type: ignore[return-value]

    return drop


def paired_over_all_channels(config: dict[str, Any], inputs: Tensors) -> Question:
    """The pairs of D, of which the first turn and the others do not."""
    missing = ((0, 0), (0, inputs["x"].shape[3] // 2 - inputs["cos"].shape[1]))
    tables = {
        "cos": np.pad(inputs["cos"], missing, constant_values=1),
        "sin": np.pad(inputs["sin"], missing),
    }
    return config | {"rotary_dim": None}, inputs | tables


def clipped(config: dict[str, Any], inputs: Tensors) -> Question:
    room = inputs["cache"].shape[-2] - inputs["update"].shape[-2]
    return config, inputs | {"write_indices": np.minimum(inputs["write_indices"], room)}


def tiled_states(config: dict[str, Any], inputs: Tensors) -> Question:
    group = inputs["q"].shape[1] // inputs["k"].shape[1]
    names = [name for name in ("k", "v", "decay", "beta") if name in inputs]
    return config, inputs | {name: np.tile(inputs[name], (1, group, 1, 1)) for name in names}


def divided_by_one_less(config: dict[str, Any], inputs: Tensors) -> Question:
    n = inputs["x"].shape[-1]
    return config, inputs | {"weight": inputs["weight"] * np.float32((1 - 1 / n) ** 0.5)}


def toggled(name: str, *values: Any) -> Callable[[dict[str, Any], Tensors], Question]:
    def toggle(config: dict[str, Any], inputs: Tensors) -> Question:
        return config | {name: values[1] if config.get(name) == values[0] else values[0]}, inputs

    return toggle


BUGS: dict[tuple[str, str], Callable[[dict[str, Any], Tensors], Question | None]] = {
    ("sdpa", "BiasIsNotMask"): without("bias"),
    ("sdpa", "CausalAlignment"): misaligned,
    ("sdpa", "ChunkedPrefill"): lambda config, inputs: (config | {"q_offset": 0}, inputs),
    ("sdpa", "GqaTile"): tiled,
    ("sdpa", "MaskPolarity"): lambda config, inputs: (config, inputs | {"mask": ~inputs["mask"]}),
    ("sdpa", "RowIndependence"): neighbours,
    ("sdpa", "SoftcapOrder"): capped_mask,
    ("sdpa", "ValueDim"): scaled_by_values,
    ("sdpa", "WindowOffByOne"): off_by_one,
    ("rope", "RopePairing"): toggled("interleaved", True, False),
    ("rope", "RopePartial"): paired_over_all_channels,
    ("rope", "RopePosition"): lambda config, inputs: (
        config,
        inputs | {"positions": np.roll(inputs["positions"], 1, axis=0)},
    ),
    ("cache_write", "CircularWrite"): clipped,
    ("gated_linear", "GqaTile"): tiled_states,
    ("gated_linear", "StateCarried"): without("state"),
    ("layer_norm", "VarianceDivisor"): divided_by_one_less,
    ("gelu", "GeluForm"): toggled("approximate", "none", "tanh"),
    ("swiglu", "GateOrder"): lambda config, inputs: (config, {"a": inputs["b"], "b": inputs["a"]}),
}


def caught(draft: Draft, question: Question) -> bool:
    """Whether the answer to another question is out of the derived bound of this one."""
    (dtype,) = draft.dtypes
    inputs, expected = realise(draft, dtype)
    assert expected is not None
    exact = {name: np.zeros(x.shape) for name, x in expected.items() if name in draft.exact}
    bounds = exact or derive(draft.op, draft.config, inputs, dtype)
    wrong = answer(draft.op, *question)
    return any(
        wrong[name].shape != x.shape
        or compare(name, dtype, x, wrong[name], round_to_half(bounds[name], x, dtype)).outcome == "fail"
        for name, x in expected.items()
    )


@pytest.mark.parametrize(("op", "flag"), BUGS)
def test_a_flagged_case_catches_its_bug(op: str, flag: str) -> None:
    flagged = [draft for draft in DRAFTS if draft.op == op and flag in draft.flags]
    assert flagged
    for draft in flagged:
        question = BUGS[op, flag](draft.config, realise(draft, draft.dtypes[0])[0])
        assert question is None or caught(draft, question), draft.id


def test_a_condition_that_vanishes_is_noticed() -> None:
    for draft in (d for d in DRAFTS if d.op == "sdpa" and "MaskComposition" in d.flags):
        inputs, _ = realise(draft, draft.dtypes[0])
        dropped = (without(name) for name in ("causal", "window", "mask", "bias", "kv_lengths"))
        assert any(caught(draft, drop(draft.config, inputs)) for drop in dropped), draft.id


def test_rows_without_a_key_are_found() -> None:
    names = {draft.id for draft in DRAFTS if "FullyMaskedRow" in draft.flags}
    assert {f"onnx/attention/{name}" for name in FULLY_MASKED} <= names
    plain = {"q": np.ones((1, 1, 1, 1)), "k": np.ones((1, 1, 1, 1)), "v": np.ones((1, 1, 1, 1))}
    assert attention_flags({}, plain) == ("Published",)
    assert all(set(draft.flags) <= set(NOTES) for draft in DRAFTS)


FULLY_MASKED = (
    "23_boolmask_fullymasked_row_nan_robustness",
    "23_fullymasked_qk_matmul_output_mode3_zero",
    "24_fullymasked_qk_matmul_output_mode3_zero",
    "4d_causal_nonpad_negative_offset_structural_empty",
)
