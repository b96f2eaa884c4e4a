"""The table of the formats, held against exact fractions, bits read by hand and whole-array formulas."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.bounds.cache_keys import _round_uncertain
from conformance.inputs import Draw
from conformance.oracle import cast
from conformance.oracle.cast import round_exactly
from conformance.oracle.quantise import LEVELS, Format, quantise

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
    """Within half a step, and what float32 rounds on the way.

    With u = 2^-24 and S the largest magnitude, a distance to the minimum is at most 2 S. It is rounded, and so is its
    quotient with the step: 2 u of 2 S. The product of step and code is rounded, u of 2 S, and the sum with the minimum,
    u of S: 7 u S in all, and 1 for the products of these errors. Where the step itself is subnormal it may be off by
    2^-150, and the largest code of 255 by less than 2^-142; where it is 0 the whole range is below that.
    """
    x = token(values)
    found = quantise(x, Format(name, zero_point=True))
    assert found.codes.dtype == np.uint8
    step, low = Fraction(float(found.scale[0, 0])), Fraction(float(found.zero[0, 0]))
    assert low == Fraction(float(x.min()))
    size = max(abs(Fraction(float(y))) for y in (x.min(), x.max()))
    allowed = step / 2 + 8 * size * Fraction(2) ** -24 + Fraction(2) ** -142
    for value, restored in zip(x[0], found.value[0], strict=True):
        assert abs(Fraction(float(value)) - Fraction(float(restored))) <= allowed


def test_codes_fit_the_type() -> None:
    x = Draw("codes").normal(50, 12).astype(np.float32)
    assert quantise(x, Format("int8")).codes.min() == -127
    assert quantise(x, Format("int8", zero_point=True)).codes.max() == 255
    assert quantise(x, Format("int4", group=5)).codes.shape == (50, 6)
    assert quantise(x, Format("int4", group=5)).scale.shape == (50, 3)
    assert quantise(x[:, :7], Format("int4")).codes[:, 3].max() <= 15


# The name stands for four bits of exponent and three of fraction, and no infinity: of the highest exponent the last
# value, 480, is NaN's, so that 448 is the largest.
FP8_E4M3 = cast.Format(4, -6, 8)
FP8_LARGEST = 448.0


def round_to_fp8(x: float) -> float:
    return math.copysign(min(abs(round_exactly(x, FP8_E4M3)), FP8_LARGEST), x)


def read_fp8(bits: int) -> float:
    """The value of a code, from its sign, exponent and fraction."""
    sign, exponent, fraction = (-1.0) ** (bits >> 7), bits >> 3 & 0xF, bits & 7
    if exponent == 0xF and fraction == 7:
        return math.nan
    if exponent == 0:
        return math.ldexp(sign * fraction, -9)
    return math.ldexp(sign * (8 + fraction), exponent - 10)


def is_same(found: float, want: float) -> bool:
    """Equal, the sign of a zero too."""
    return found == want and math.copysign(1, found) == math.copysign(1, want)


@given(st.one_of(st.floats(width=32, allow_nan=False), st.floats(-500, 500, width=32)))
@settings(max_examples=500, deadline=None)
def test_fp8_is_the_nearest_value_but_saturates(x: float) -> None:
    (value,) = quantise(token([x]), Format("fp8_e4m3")).value[0].tolist()
    assert is_same(value, round_to_fp8(x))


def test_fp8_takes_ties_to_even() -> None:
    """The middle of every two neighbours, and its own neighbours in float32."""
    values = [read_fp8(bits) for bits in range(0x7F)]
    middles = np.array([(a + b) / 2 for a, b in pairwise(values)], np.float32)
    for x in (middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(500))):
        for one in (x, -x):
            found = quantise(one[None], Format("fp8_e4m3")).value[0]
            assert found.tolist() == [round_to_fp8(y) for y in one.tolist()]


def test_fp8_codes_are_the_bits() -> None:
    values = np.array([read_fp8(bits) for bits in range(256)], np.float32)
    numbers = ~np.isnan(values)
    assert numbers.sum() == 254
    codes = quantise(values[None], Format("fp8_e4m3")).codes[0]
    np.testing.assert_array_equal(codes[numbers], np.arange(256)[numbers])
    assert set(codes[~numbers]) == {0x7F}
    infinite = quantise(token([np.inf, -np.inf]), Format("fp8_e4m3"))
    assert infinite.codes.tolist() == [[0x7E, 0xFE]]


def read_half(name: str, bits: np.ndarray) -> np.ndarray:
    """What the 16 bits stand for: a float of the IEEE, or the upper half of a float32."""
    if name == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9), st.sampled_from(["f16", "bf16"])
)
@settings(max_examples=300, deadline=None)
def test_halves_are_casts(values: list[float], name: str) -> None:
    with np.errstate(over="ignore"):  # what is infinite in the half type
        found = quantise(token(values), Format(name))
    want = [round_exactly(x, cast.FORMATS[name]) for x in token(values)[0].tolist()]
    assert all(map(is_same, found.value[0].tolist(), want))
    assert all(map(is_same, read_half(name, found.codes.view(np.uint16))[0].tolist(), want))
    assert found.scale.shape == (1, 0)


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
