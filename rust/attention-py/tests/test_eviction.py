"""Policies, tracks, keys by channel and heads with slots of their own, at the edge to Python."""

import ml_dtypes
import numpy as np
import pytest

import rosetta_attention_rs as ra
from rosetta_attention_rs.eviction import HeavyHitters, KeyNorm, SnapKV, Window

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
B, HKV, D, T = 2, 2, 4, 5


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


def filled(make=ra.KVCache, dtype=np.float32, **options):
    cache = make(B, HKV, D, dtype=dtype, **options)
    cache.append(normal(B, HKV, T, D, dtype=dtype), normal(B, HKV, T, D, dtype=dtype))
    return cache


def code(call, *arguments, **options):
    with pytest.raises(ra.AttentionError) as caught:
        call(*arguments, **options)
    assert str(caught.value).count(": expected ") == 1
    return caught.value.code


MAKERS = {
    "contiguous": (ra.KVCache, {}),
    "per_head": (ra.PerHeadCache, {}),
    "quantised": (ra.QuantisedCache, {"format": "f16"}),
    "kivi": (ra.KiviCache, {"format": "int8", "key_groups": 2}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MAKERS)
def test_every_policy_keeps_its_budget(name, dtype):
    make, options = MAKERS[name]
    q = normal(B, 2 * HKV, 3, D, dtype=dtype)
    for policy in (
        Window(3, 1),
        HeavyHitters(3, recent=1),
        SnapKV(3, q, sinks=1, recent=1, scale=0.5, pool=3),
        KeyNorm(3),
    ):
        cache = filled(make, dtype, track=True, **options)
        cache.attend(q)
        before = cache.tracked()
        assert (before.shape, before.dtype) == ((B, HKV, T), np.float64)
        # 3 queries of 2 heads: each of T weights is a quotient by a sum of T, T roundings of f32, and sums in f64.
        assert np.allclose(before.sum(axis=2), 6, rtol=(T + 1) * 2.0**-24, atol=0)
        cache.evict_by(policy)
        assert (cache.lengths == 3).all()
        held = cache.slot_positions()
        of_heads = held if held.ndim == 3 else np.repeat(held[:, None], HKV, axis=1)
        assert np.array_equal(cache.tracked(), np.take_along_axis(before, of_heads, axis=2))


def test_a_budget_for_each_head():
    cache = filled(ra.PerHeadCache)
    k = cache.read()[0]
    cache.evict_by(KeyNorm([1, T]))
    assert cache.lengths.tolist() == [[1, T]] * B
    shortest = np.argmin((k.astype(np.float64) ** 2).sum(axis=3), axis=2)
    assert cache.slot_positions()[:, 0, 0].tolist() == shortest[:, 0].tolist()
    assert cache.stats().positions.tolist() == [[1, T]] * B
    assert [x.shape for x in cache.read()] == [(B, HKV, T, D), (B, HKV, T, D), (B, HKV)]
    assert code(cache.evict_by, KeyNorm([1])) == "shape_mismatch"
    assert code(cache.truncate, [0] * B) == "invalid_config"
    fork = cache.fork()
    cache.reorder([1, 1])
    cache.evict(range(T))
    assert len(cache) == 0
    assert len(fork) == T


def test_codes_of_keys_by_channel(tmp_path):
    cache = filled(ra.KiviCache, format="int4", key_groups=2, zero_point=True, track=True)
    arrays = cache.code_arrays()
    shapes = {
        "k_codes": (np.uint8, (B, HKV, T, D // 2)),
        "k_scale": (np.float32, (B, HKV, 2, D)),
        "k_zero": (np.float32, (B, HKV, 2, D)),
        "k_tail": (np.float32, (B, HKV, 1, D)),
        "v_codes": (np.uint8, (B, HKV, T, D // 2)),
        "v_scale": (np.float32, (B, HKV, T, 1)),
        "v_zero": (np.float32, (B, HKV, T, 1)),
    }
    assert {name: (x.dtype.type, x.shape) for name, x in arrays.items()} == shapes
    k, v = cache.codes()
    assert np.array_equal(ra.restore(k)[:, :, :4], cache.read()[0][:, :, :4])
    assert np.array_equal(ra.restore(v), cache.read()[1])
    assert np.array_equal(arrays["k_tail"], cache.read()[0][:, :, 4:])
    ra.save(cache, tmp_path / "cache")
    other = ra.KiviCache(B, HKV, D, format="int4", key_groups=2, zero_point=True, track=True)
    ra.load(other, tmp_path / "cache")
    assert all(np.array_equal(x, other.code_arrays()[name]) for name, x in arrays.items())
    for options in ({"key_groups": 3, "track": True}, {"key_groups": 2}):
        wrong = ra.KiviCache(B, HKV, D, format="int4", zero_point=True, **options)
        assert code(ra.load, wrong, tmp_path / "cache") == "invalid_config"
    plain = ra.QuantisedCache(B, HKV, D, format="int4", zero_point=True, track=True)
    assert code(ra.load, plain, tmp_path / "cache") == "invalid_config"


@pytest.mark.parametrize("dtype", DTYPES)
def test_when_keys_are_turned(dtype):
    q = normal(B, HKV, 2, D, dtype=dtype)
    appended = filled(dtype=dtype, rope=ra.Rope(), rope_at="append")
    attended = filled(dtype=dtype, rope=ra.Rope(), rope_at="attend")
    assert (appended.held_rope, attended.held_rope) == (ra.Rope(), None)
    assert np.array_equal(attended.read()[0], normal(B, HKV, T, D, dtype=dtype))
    if np.dtype(dtype) in (np.dtype(np.float32), np.dtype(np.float64)):
        assert np.array_equal(appended.attend(q), attended.attend(q))  # one turn each, in the same type
    for make in (
        lambda **o: ra.KVCache(1, 1, D, **o),
        lambda **o: ra.PerHeadCache(1, 1, D, **o),
        lambda **o: ra.RotatingCache(1, 1, D, window=2, **o),
        lambda **o: ra.PagedCache(ra.PagePool(1, 1, 1, D), 1, **o),
        lambda **o: ra.QuantisedCache(1, 1, D, format="f16", **o),
        lambda **o: ra.KiviCache(1, 1, D, format="int8", key_groups=2, **o),
    ):
        assert make(rope=ra.Rope(), rope_at="attend").held_rope is None
        assert code(make, rope_at="attend") == "invalid_config"
        assert code(make, rope_at="append") == "invalid_config"
        for word in ("Append", "", 3, True):
            assert code(make, rope=ra.Rope(), rope_at=word) == "invalid_config"


X = normal(B, HKV, 1, D)


@pytest.mark.parametrize(
    ("expected", "policy"),
    [
        ("invalid_config", None),
        ("invalid_config", "window"),
        ("invalid_config", ra.Window(1, 0)),  # that of a sparse pattern
        ("invalid_config", Window(-1)),
        ("invalid_config", Window(2.0)),
        ("invalid_config", Window(True)),
        ("invalid_config", Window("2")),
        ("invalid_config", Window([2, 2])),
        ("invalid_config", Window(2, 3)),
        ("invalid_config", KeyNorm(2, sinks=1.5)),
        ("invalid_config", KeyNorm(2, recent=None)),
        ("invalid_config", HeavyHitters(2)),  # nothing is tracked
        ("invalid_config", SnapKV(2, X, pool=2)),
        ("invalid_config", SnapKV(2, X, pool=0)),
        ("invalid_config", SnapKV(2, X, scale=np.nan)),
        ("invalid_config", SnapKV(2, X, scale="1")),
        ("shape_mismatch", SnapKV(2, X[0])),
        ("shape_mismatch", SnapKV(2, X[:, :, :0])),
        ("shape_mismatch", SnapKV(2, X[:, :, :, :3])),
        ("shape_mismatch", SnapKV(2, X[:1])),
        ("dtype_mismatch", SnapKV(2, X.astype(np.float64))),
        ("dtype_mismatch", SnapKV(2, [[[[0.0] * D]]])),
        ("dtype_mismatch", SnapKV(2, None)),
    ],
)
def test_bad_policies(expected, policy):
    cache = filled()
    before = cache.read()
    assert code(cache.evict_by, policy) == expected
    assert all(np.array_equal(a, b) for a, b in zip(before, cache.read(), strict=True))


def test_bad_options():
    for track in (None, 1, "yes"):
        assert code(ra.KVCache, 1, 1, 1, track=track) == "invalid_config"
    assert code(ra.KVCache(1, 1, 1).tracked) == "invalid_config"
    for key_groups in (0, -1, 1.0, True, None):
        assert code(ra.KiviCache, 1, 1, 1, format="int8", key_groups=key_groups) == "invalid_config"
    assert code(ra.KiviCache, 1, 1, 1, format="f16", key_groups=2) == "invalid_config"
