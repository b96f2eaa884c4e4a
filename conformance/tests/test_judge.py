"""The judge on answers that are right, nearly right, and wrong in every way it knows."""

from pathlib import Path

import numpy as np
import pytest

from conformance import fixtures
from conformance.case import Case
from conformance.judge import first_different_step, judge_answer, judge_tensors
from conformance.oracle import answer
from conformance.tensors import Tensors, write_tensors

SDPA = fixtures.load_suite("sdpa")
CACHE = fixtures.load_suite("kv_cache")
CAST = fixtures.load_suite("cast")


def find(suite: fixtures.LoadedSuite, name: str) -> tuple[Case, Tensors, Tensors | None]:
    case = next(case for case in suite.suite.cases if case.id == name)
    return case, suite.inputs(case, "f32"), suite.expected(case, "f32")


def honest(expected: Tensors | None) -> Tensors:
    assert expected is not None
    return {name: x.astype(np.float32) if x.dtype.kind == "f" else x for name, x in expected.items()}


PLAIN = find(SDPA, "sdpa/lengths/zero-and-full")


def judged(change: dict[str, np.ndarray | None]) -> str:
    case, inputs, expected = PLAIN
    got = {name: x for name, x in (honest(expected) | change).items() if x is not None}
    verdict = judge_tensors(case, "f32", inputs, expected or {}, got)
    return verdict.message or verdict.outcome


def test_the_rounded_answer_passes_with_a_small_share() -> None:
    case, inputs, expected = PLAIN
    verdict = judge_tensors(case, "f32", inputs, expected or {}, honest(expected))
    assert verdict.outcome == "pass"
    assert 0 < verdict.share < 0.2
    assert verdict.max_ulp <= 0.5


def test_an_element_outside_its_bound_is_named() -> None:
    output = honest(PLAIN[2])["output"].copy()
    output[1, 2, 3, 1] *= 1 + 1e-3
    assert judged({"output": output}).startswith("output[1, 2, 3, 1]: out of its bound")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_fails(value: float) -> None:
    output = honest(PLAIN[2])["output"].copy()
    output[1, 0, 0, 0] = value
    assert "NaN or infinity" in judged({"output": output})


def test_minus_infinity_is_not_infinity() -> None:
    lse = honest(PLAIN[2])["lse"]
    assert lse[0, 0, 0] == -np.inf
    assert "NaN or infinity" in judged({"lse": np.where(lse == -np.inf, np.inf, lse).astype(np.float32)})


def test_hidden_weights_are_exactly_zero() -> None:
    weights = honest(PLAIN[2])["weights"].copy()
    weights[0, 0, 0, 0] = 1e-30
    assert judged({"weights": weights}).startswith("weights[0, 0, 0, 0]: out of its bound")


def test_form_comes_before_values() -> None:
    got = honest(PLAIN[2])
    assert "wrong dtype" in judged({"output": got["output"].astype(np.float64)})
    assert "wrong shape" in judged({"output": got["output"][..., :1]})
    assert "expected exactly" in judged({"lse": None})
    assert "expected exactly" in judged({"extra": np.zeros(1, np.float32)})


def test_reads_of_a_cache_are_exact() -> None:
    case, inputs, expected = find(CACHE, "kv_cache/truncate/some")
    got = honest(expected)
    assert judge_tensors(case, "f32", inputs, expected or {}, got).outcome == "pass"
    k = got["read0.k"].copy()
    k[0, 0, 0, 0] = np.nextafter(k[0, 0, 0, 0], np.float32(10))
    assert judge_tensors(case, "f32", inputs, expected or {}, got | {"read0.k": k}).message.startswith(
        "read0.k[0, 0, 0, 0]"
    )
    lengths = got["read0.lengths"] + 1
    assert (
        judge_tensors(case, "f32", inputs, expected or {}, got | {"read0.lengths": lengths}).outcome == "fail"
    )


def test_what_is_exact_has_the_sign_of_its_zeros() -> None:
    case, inputs, expected = find(CAST, "cast/to-f32/special")
    got = honest(expected)
    assert judge_tensors(case, "f32", inputs, expected or {}, got).outcome == "pass"
    got["output"][1] = 0.0
    verdict = judge_tensors(case, "f32", inputs, expected or {}, got)
    assert verdict.message.startswith("output[1]: zero of the wrong sign: expected -0, got 0")


def test_status_and_codes(tmp_path: Path) -> None:
    case, inputs, expected = PLAIN
    nowhere = tmp_path / "out.safetensors"

    def outcome(case: Case, given: dict[str, object]) -> str:
        return judge_answer(case, "f32", given, inputs, expected, nowhere).outcome

    refused, *_ = find(SDPA, "sdpa/error/softcap-zero")
    assert outcome(refused, {"status": "error", "code": "invalid_config", "message": "x"}) == "pass"
    assert outcome(refused, {"status": "error", "code": "shape_mismatch"}) == "fail"
    assert outcome(refused, {"status": "ok"}) == "fail"
    assert outcome(case, {"status": "error", "code": "internal"}) == "error"
    assert outcome(case, {"status": "unsupported", "feature": "gqa"}) == "unsupported"
    assert outcome(case, {"status": "ok"}) == "fail"  # no file
    assert outcome(case, {"status": "fine"}) == "fail"
    nowhere.write_bytes(b"not a tensor")
    assert outcome(case, {"status": "ok"}) == "fail"
    write_tensors(nowhere, honest(expected))
    assert outcome(case, {"status": "ok"}) == "pass"


def test_step_codes_of_a_script_are_compared(tmp_path: Path) -> None:
    case, inputs, expected = find(CACHE, "kv_cache/failure/capacity")
    path = tmp_path / "out.safetensors"
    write_tensors(path, honest(expected))
    assert case.steps is not None
    good = judge_answer(case, "f32", {"status": "ok", "steps": case.steps}, inputs, expected, path)
    assert good.outcome == "pass"
    bad = judge_answer(
        case, "f32", {"status": "ok", "steps": ["ok"] * len(case.steps)}, inputs, expected, path
    )
    assert bad.message == "steps: step 1: expected capacity_exceeded, got ok"
    assert judge_answer(case, "f32", {"status": "ok"}, inputs, expected, path).outcome == "fail"


@pytest.mark.parametrize("broken", ["scores", "capped", "biased", "weights"])
def test_the_first_different_step_is_found(broken: str) -> None:
    case, inputs, _ = find(SDPA, "sdpa/steps/all")
    order = ["scores", "capped", "biased", "weights", "lse", "output"]
    got = honest(answer("sdpa", case.config, inputs))
    for name in order[order.index(broken) :]:
        got[name] = got[name] + np.float32(0.5)
    found = first_different_step(case, "f32", inputs, got)
    assert found is not None
    assert found.tensor == broken
    assert first_different_step(case, "f32", inputs, honest(answer("sdpa", case.config, inputs))) is None
