"""The table of the formats, held against `ml_dtypes`, exact fractions and whole-array formulas."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.bounds.kv_cache import _round_uncertain
from conformance.inputs import Draw
from conformance.oracle.quantise import FP8, LEVELS, Format, quantise

F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
TOKENS = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=9)


def token(values: list[float]) -> np.ndarray:
    return np.array([values], np.float32)


def unpack(packed: np.ndarray, n: int, *, signed: bool) -> np.ndarray:
    """The codes of n channels from their bytes."""
    codes = (
        np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(packed.shape[0], -1)[:, :n].astype(np.int64)
    )
    return np.where(codes > 7, codes - 16, codes) if signed else codes


@given(TOKENS, st.sampled_from(["int8", "int4"]))
@settings(max_examples=300, deadline=None)
def test_symmetric_codes_are_the_nearest_in_float32(values: list[float], name: str) -> None:
    x = token(values)
    found = quantise(x, Format(name))
    scale = np.float32(np.abs(x).max() / np.float32(LEVELS[name]))
    assert found.scale.dtype == np.float32
    assert found.scale[0, 0] == scale
    codes = found.codes if name == "int8" else unpack(found.codes, x.shape[1], signed=True)
    with np.errstate(all="ignore"):
        want = np.clip(np.rint(x / scale), -LEVELS[name], LEVELS[name]) if scale else np.zeros(x.shape)
    np.testing.assert_array_equal(codes, want)
    np.testing.assert_array_equal(found.value, codes.astype(np.float32) * scale)
    assert np.isfinite(found.value).all()


@given(
    st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=9),
    st.sampled_from(["int8", "int4"]),
)
@settings(max_examples=300, deadline=None)
def test_codes_from_zero_are_within_half_a_step(values: list[float], name: str) -> None:
    x = token(values)
    found = quantise(x, Format(name, zero_point=True))
    assert found.codes.dtype == np.uint8
    step, low = Fraction(float(found.scale[0, 0])), Fraction(float(found.zero[0, 0]))
    assert low == Fraction(float(x.min()))
    for value, restored in zip(x[0], found.value[0], strict=True):
        size = max(abs(Fraction(float(y))) for y in (x.min(), x.max()))
        allowed = step * Fraction(51, 100) + 16 * size * Fraction(2) ** -23 + Fraction(2) ** -120
        assert abs(Fraction(float(value)) - Fraction(float(restored))) <= allowed


def test_codes_fit_the_type() -> None:
    x = Draw("codes").normal(50, 12).astype(np.float32)
    assert quantise(x, Format("int8")).codes.min() == -127
    assert quantise(x, Format("int8", zero_point=True)).codes.max() == 255
    assert quantise(x, Format("int4", group=5)).codes.shape == (50, 6)
    assert quantise(x, Format("int4", group=5)).scale.shape == (50, 3)
    assert quantise(x[:, :7], Format("int4")).codes[:, 3].max() <= 15


@given(F32)
@settings(max_examples=500, deadline=None)
def test_fp8_is_ml_dtypes_but_saturates(x: float) -> None:
    (value,) = quantise(token([x]), Format("fp8_e4m3")).value[0]
    with np.errstate(all="ignore"):
        theirs = np.float32(np.float32(x).astype(FP8))
    if abs(x) <= 464:
        assert value == theirs
    else:
        assert value == np.copysign(448, x)
        assert np.isnan(theirs)


def test_fp8_codes_are_the_bits() -> None:
    bits = np.arange(256, dtype=np.uint8)
    values = bits.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    found = quantise(values[None], Format("fp8_e4m3")).codes[0]
    np.testing.assert_array_equal(found[~np.isnan(values)], bits[~np.isnan(values)])
    assert set(found[np.isnan(values)]) == {0x7F}
    infinite = quantise(token([np.inf, -np.inf]), Format("fp8_e4m3"))
    assert infinite.codes.tolist() == [[0x7E, 0xFE]]


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_halves_are_casts(name: str, dtype: type) -> None:
    x = (Draw(name).normal(20, 9) * 10).astype(np.float32)
    found = quantise(x, Format(name))
    assert found.codes.dtype == dtype
    np.testing.assert_array_equal(found.value, x.astype(dtype).astype(np.float32))
    assert found.scale.shape == (20, 0)


FORMATS = (
    *(Format(name) for name in ("f16", "bf16", "fp8_e4m3", "int8", "int4")),
    *(Format(name, group, zero_point=True) for name in ("int8", "int4") for group in (None, 2)),
)


@given(st.sampled_from(FORMATS), st.integers(0, 10**6), st.floats(1e-9, 0.3))
@settings(max_examples=400, deadline=None)
def test_the_bound_of_an_uncertain_value_holds(form: Format, seed: int, size: float) -> None:
    """Values moved by up to their error, ties among them: what they are rounded to stays within the bound."""
    draw = Draw(f"uncertain/{seed}")
    value = np.round(draw.normal(2, 5) * 8) / 2 if seed % 3 == 0 else draw.normal(2, 5)
    error = size * draw.uniform(2, 5)
    value = value.astype(np.float32).astype(np.float64)
    bound = _round_uncertain(form, value, error + 2.0**-24 * (np.abs(value) + error))
    exact = quantise(value.astype(np.float32), form).value.astype(np.float64)
    for share in (1, -1, 2 * draw.uniform(2, 5) - 1, np.sign(draw.normal(2, 5))):
        moved = quantise((value + share * error).astype(np.float32), form).value.astype(np.float64)
        assert (np.abs(moved - exact) <= bound).all()


def test_a_value_that_is_certain_keeps_its_code() -> None:
    """Away from the middle of two codes the bound is far below a step."""
    x = np.array([[127.0, 3.2, -50.3, 0.1]])
    bound = _round_uncertain(Format("int8"), x, np.full(x.shape, 1e-5))
    assert bound.max() < 1e-3
    tie = np.array([[127.0, 3.5, -50.3, 0.1]])
    bound = _round_uncertain(Format("int8"), tie, np.full(tie.shape, 1e-5))
    assert 0.9 < bound[0, 1] < 1.1
    assert _round_uncertain(Format("int8"), np.zeros((1, 4)), np.zeros((1, 4))).max() < 1e-30
