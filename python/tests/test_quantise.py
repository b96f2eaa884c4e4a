"""Codes against tables of `ml_dtypes` and closed forms."""

import ml_dtypes
import numpy as np
import pytest

import rosetta_attention as ra

F = np.float32
SCALED = [("int8", False, 127), ("int8", True, 255), ("int4", False, 7), ("int4", True, 15)]


def codes_of(values, *args, **options) -> tuple[list, ...]:
    codes = ra.quantise(F(values), *args, **options)
    return codes.codes.tolist(), ra.restore(codes).tolist()


def test_by_hand():
    assert codes_of([-1, 1], "int8") == ([-127, 127], [-1, 1])
    assert codes_of([254, 3, 1, -1, -3], "int8") == ([127, 2, 0, 0, -2], [254, 4, 0, 0, -4])  # ties to even
    assert codes_of([10, 265, 11.5, 12.5], "int8", zero_point=True)[0] == [0, 255, 2, 2]
    assert codes_of([7, -1, 3], "int4") == ([0xF7, 0x03], [7, -1, 3])
    assert codes_of([0, 15, 2], "int4", zero_point=True) == ([0xF0, 0x02], [0, 15, 2])
    assert codes_of([1, -2, 100, 50, 7], "int8", group=2)[0] == [64, -127, 127, 64, 127]


@pytest.mark.parametrize(("name", "zero_point", "levels"), SCALED, ids=str)
def test_a_group_without_a_range(name, zero_point, levels):
    """ZeroGroup: a scale of 0 gives codes of 0, and no NaN."""
    assert codes_of([0, 0, 0, 0], name, zero_point=zero_point)[1] == [0, 0, 0, 0]
    same = codes_of([0.7] * 4, name, zero_point=zero_point)[1]
    np.testing.assert_allclose(same, [0.7] * 4, rtol=1e-6)
    tiny = codes_of([1e-45, 0], name, zero_point=zero_point)  # the scale falls below the smallest subnormal
    assert tiny == (codes_of([0, 0], name)[0], [0, 0])


@pytest.mark.parametrize(("name", "zero_point", "levels"), SCALED, ids=str)
@pytest.mark.parametrize("group", [None, 1, 3, 2**60])
@pytest.mark.parametrize("n", [0, 1, 7, 8])
def test_the_error_is_half_a_step(name, zero_point, levels, group, n):
    x = np.random.default_rng(n).standard_normal((2, 3, n)).astype(F) * F(10)
    codes = ra.quantise(x, name, group, zero_point)
    groups = -(-n // (group or max(n, 1)))
    assert codes.codes.shape == (2, 3, -(-n // 2) if name == "int4" else n)
    assert codes.codes.dtype == (np.int8 if (name, zero_point) == ("int8", False) else np.uint8)
    assert codes.scale.shape == (2, 3, groups)
    assert codes.scale.dtype == np.float32
    assert (codes.zero is None) != zero_point
    step = codes.scale[..., np.arange(n) // (group or max(n, 1))]
    assert (np.abs(ra.restore(codes) - x) <= step * 0.51).all()


@pytest.mark.parametrize(("name", "zero_point", "levels"), SCALED, ids=str)
def test_arithmetic_of_float32_operation_by_operation(name, zero_point, levels):
    x = np.random.default_rng(5).standard_normal(500).astype(F)
    low = x.min() if zero_point else F(0)
    scale = F(x.max() - low if zero_point else np.abs(x).max()) / F(levels)
    whole = np.rint((x - low) / scale)
    codes = ra.quantise(x, name, None, zero_point)
    assert codes.scale == scale
    np.testing.assert_array_equal(ra.restore(codes), whole.astype(F) * scale + low)


def test_fp8_is_that_of_ml_dtypes_but_saturates():
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(F)
    finite = np.unique(every[np.isfinite(every)])
    ties = (finite[1:] + finite[:-1]) / F(2)
    x = np.concatenate([every, ties, np.nextafter(ties, F(np.inf)), np.nextafter(ties, F(-np.inf))])
    codes = ra.quantise(x, "fp8_e4m3")
    want = x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    want[np.isnan(x)] = 0x7F
    np.testing.assert_array_equal(codes.codes, want)
    np.testing.assert_array_equal(ra.restore(codes)[:128], every[:128])
    assert codes_of([449, 1e9, np.inf, -np.inf], "fp8_e4m3")[1] == [448, 448, 448, -448]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_halves_are_those_of_cast(name):
    x = np.random.default_rng(1).standard_normal(100).astype(F)
    np.testing.assert_array_equal(ra.quantise(x, name).codes, ra.cast(x, name))


@pytest.mark.parametrize(("name", "zero_point", "levels"), SCALED, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_no_code_for_what_is_not_finite(name, zero_point, levels, bad):
    with pytest.raises(ra.InvalidConfig):
        ra.quantise(F([1, bad]), name, None, zero_point)
    cache = ra.QuantisedCache(1, 1, 2, format=name, zero_point=zero_point)
    good, junk = np.ones((1, 1, 2, 2), F), np.full((1, 1, 2, 2), F(bad))
    with pytest.raises(ra.InvalidConfig):
        cache.append(good, junk)
    cache.append(
        good, np.concatenate([good[:, :, :1], junk[:, :, :1]], 2), np.int64([1])
    )  # junk may be anything
    assert cache.lengths.tolist() == [1]


@pytest.mark.parametrize(
    "options",
    [
        {"format": "int3"},
        {"format": 8},
        {"format": "int8", "group": 0},
        {"format": "int8", "group": 1.5},
        {"format": "int8", "zero_point": 1},
        {"format": "f16", "zero_point": True},
        {"format": "fp8_e4m3", "zero_point": True},
    ],
    ids=str,
)
def test_refuses(options):
    with pytest.raises(ra.InvalidConfig):
        ra.quantise(F([1, 2]), **options)
    with pytest.raises(ra.InvalidConfig):
        ra.QuantisedCache(1, 1, 2, **options)


def test_scales_of_keys_and_values_are_their_own():
    """QuantisedScale: 11.647059 without any scale, 10 without that of the values, 5.823529 without that of the keys."""
    cache = ra.QuantisedCache(1, 1, 1, format="int8")
    k, v = (F(x).reshape(1, 1, 2, 1) for x in ([0, np.log(2)], [3, 6]))
    cache.append(k, v)
    assert [codes.codes.ravel().tolist() for codes in cache.codes()] == [[0, 127], [127, 127]]
    np.testing.assert_allclose(cache.attend(np.ones((1, 1, 1, 1), F), scale=1).item(), 5, rtol=1e-6)
