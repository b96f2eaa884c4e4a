"""The bounds of angles, positions and partial attention: they hold against 50 digits, and catch what is coarser."""

from typing import Any

import mpmath
import numpy as np
import pytest
from coarse import count_caught

from conformance import cases
from conformance.bounds import derive
from conformance.bounds.angles import bound_attention_factor, bound_frequencies
from conformance.cases.draft import Draft
from conformance.oracle import answer
from conformance.oracle.rope_scaling import attention_factor, frequencies
from conformance.realise import realise

DIGITS = 50
SCALED = [
    d
    for d in cases.drafts("positions")
    if d.op == "rope" and d.error is None and "f64" in d.dtypes
    if "cos" not in d.inputs and d.inputs["x"].shape[2]
]


def exact_frequencies(config: dict[str, Any], R: int, length: int) -> list[Any]:
    """The page's formulas at 50 digits."""
    mpf = mpmath.mpf
    base = mpf(config.get("base") or 10000)
    plain = [base ** (-2 * mpf(i) / R) for i in range(R // 2)]
    scaling = config.get("scaling")
    if scaling is None:
        return plain
    kind, s = scaling["type"], mpf(scaling.get("factor", 1))
    if kind == "linear":
        return [f / s for f in plain]
    L0 = mpf(scaling["original_length"])
    L = mpf(scaling.get("length", length))
    if kind == "dynamic":
        if L <= L0 or R == 2:
            return plain
        grown = base * (s * L / L0 - (s - 1)) ** (mpf(R) / (R - 2))
        return [grown ** (-2 * mpf(i) / R) for i in range(R // 2)]
    if kind == "longrope":
        factors = scaling["long_factor" if L > L0 else "short_factor"]
        return [f / mpf(x) for f, x in zip(plain, factors, strict=True)]
    if kind == "llama3":
        low, high = mpf(scaling.get("low_freq_factor", 1)), mpf(scaling.get("high_freq_factor", 4))
        result = []
        for f in plain:
            wavelength = 2 * mpmath.pi / f
            t = (L0 * f / (2 * mpmath.pi) - low) / (high - low)
            middle = (1 - t) * f / s + t * f
            result.append(f if wavelength < L0 / high else f / s if wavelength > L0 / low else middle)
        return result

    def end(beta: Any) -> Any:
        return R * mpmath.log(L0 / (2 * mpmath.pi * beta)) / (2 * mpmath.log(base))

    low, high = end(mpf(scaling.get("beta_fast", 32))), end(mpf(scaling.get("beta_slow", 1)))
    if scaling.get("truncate", True):
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = (min(max(end, 0), R - 1) for end in (low, high))
    high = low + mpf("0.001") if low == high else high
    ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(R // 2)]
    return [f * (1 - r) + f / s * r for f, r in zip(plain, ramp, strict=True)]


@pytest.mark.parametrize("draft", SCALED, ids=lambda d: d.id)
def test_frequencies_are_within_their_bound(draft: Draft) -> None:
    """Of 50 digits; half of the bound belongs to the oracle, and no real implementation comes near the other half."""
    mpmath.mp.dps = DIGITS
    R = int(draft.config.get("rotary_dim") or draft.inputs["x"].shape[3])
    rows = draft.inputs.get("positions", np.array([[9]]))
    for row in rows:
        length = int(row.max()) + 1
        got, bound = frequencies(draft.config, R, length), bound_frequencies(draft.config, R, length)
        exact_ones = exact_frequencies(draft.config, R, length)
        for f, value, error, exact in zip(got, bound.value, bound.error, exact_ones, strict=True):
            assert abs(mpmath.mpf(float(f)) - exact) <= error / 2
            assert abs(mpmath.mpf(float(value)) - exact) <= error / 2
            assert error <= 1e-11 * abs(exact)


def test_the_attention_factor_is_within_its_bound() -> None:
    mpmath.mp.dps = DIGITS
    for s in (1.5, 4.0, 40.0):
        yarn = {"scaling": {"type": "yarn", "factor": s, "original_length": 100}}
        exact = mpmath.mpf("0.1") * mpmath.log(s) + 1
        assert abs(attention_factor(yarn) - exact) <= bound_attention_factor(yarn).error / 2
        long = {"scaling": {"type": "longrope", "factor": s, "original_length": 100}}
        exact = mpmath.sqrt(1 + mpmath.log(s) / mpmath.log(100))
        assert abs(attention_factor(long) - exact) <= bound_attention_factor(long).error / 2


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_far_angles_need_float64_and_get_it(dtype: str) -> None:
    """Angles by another road are within the bound; those of f32 are out of it by far, in either type."""
    draft = next(d for d in SCALED if d.id == "positions/rope/positions/far")
    inputs, expected = realise(draft, dtype)
    assert expected is not None
    bound = derive("rope", draft.config, inputs, dtype)["cos"]
    p, f = inputs["positions"][..., None], 10000.0 ** (-np.arange(0, 8, 2) / 8)
    stored = np.float32 if dtype == "f32" else np.float64
    assert (np.abs(np.cos(p * f).astype(stored) - expected["cos"]) <= bound).all()
    coarse = np.cos((p.astype(np.float32) * f.astype(np.float32)).astype(np.float64))
    assert (np.abs(coarse - expected["cos"]) > 100 * bound).any()


@pytest.mark.parametrize(("block_k", "splits"), [(1, 1), (2, 3), (7, 4), (16, 9), (64, 1)])
def test_an_online_softmax_in_f32_is_within_the_bound(block_k: int, splits: int) -> None:
    """A state of maximum, sum and values, rescaled from tile to tile, and merged from part to part."""
    worst = 0.0
    for draft in cases.drafts("flash"):
        if draft.op != "sdpa" or not set(draft.inputs) <= {"q", "k", "v"} or "f32" not in draft.dtypes:
            continue
        if set(draft.config) - {"block_q", "block_k", "splits"} or 0 in draft.inputs["v"].shape:
            continue
        inputs, expected = realise(draft, "f32")
        assert expected is not None
        if not expected["output"].size or not np.isfinite(expected["output"]).all():
            continue
        bound = derive("sdpa", {"block_k": block_k, "splits": splits}, inputs, "f32")
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        group = q.shape[1] // k.shape[1]
        scores = (q * np.float32(q.shape[3] ** -0.5)) @ np.repeat(k, group, 1).swapaxes(-1, -2)
        states = [
            _online(scores, np.repeat(v, group, 1), keys, block_k)
            for keys in np.array_split(np.arange(k.shape[2]), splits)
        ]
        output, lse = states[0]
        for b_output, b_lse in states[1:]:
            merged = answer(
                "merge", {}, {"a_output": output, "a_lse": lse, "b_output": b_output, "b_lse": b_lse}
            )
            output, lse = merged["output"].astype(np.float32), merged["lse"].astype(np.float32)
        worst = max(worst, float((np.abs(output - expected["output"]) / bound["output"]).max()))
        worst = max(worst, float((np.abs(lse - expected["lse"]) / bound["lse"]).max()))
    assert 0 < worst <= 0.5


def _online(scores: np.ndarray, v: np.ndarray, keys: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray]:
    shape = scores.shape[:3]
    top, total = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.float32)
    values = np.zeros((*shape, v.shape[3]), np.float32)
    for start in range(0, len(keys), tile):
        chosen = keys[start : start + tile]
        s = scores[..., chosen]
        new = np.maximum(top, s.max(axis=-1))
        shrink, p = np.exp(top - new), np.exp(s - new[..., None])
        total, values = total * shrink + p.sum(-1), values * shrink[..., None] + p @ v[:, :, chosen]
        top = new
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total[..., None] == 0, 0, values / total[..., None]), top + np.log(total)


@pytest.mark.parametrize("suite", ["flash", "varlen", "scoring", "dropout"])
def test_inputs_cut_to_bfloat16_are_caught(suite: str) -> None:
    """Inputs cut to bf16 are out of the bound of f32 in most cases of a suite."""
    caught, asked = count_caught(
        suite, lambda x: (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32), 30
    )
    assert asked >= 10
    assert caught >= 0.8 * asked
