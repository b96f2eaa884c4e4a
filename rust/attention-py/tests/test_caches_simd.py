"""Caches that are attended to by vector instructions: the same answers, both or nothing, and what is refused."""

import ml_dtypes
import numpy as np
import pytest

import rosetta_attention_rs as ra

RNG = np.random.default_rng(8)
SIZES = (2, 2, 8, 6)  # B, Hkv, D, Dv
BF16 = ml_dtypes.bfloat16
KINDS = {
    "contiguous": ra.KVCache,
    "rotating": lambda *sizes, **options: ra.RotatingCache(*sizes, window=3, keep=1, **options),
    "paged": lambda batch, *sizes, dtype: ra.PagedCache(ra.PagePool(20, 2, *sizes, dtype=dtype), batch),
    "int8": lambda *sizes, **options: ra.QuantisedCache(*sizes, format="int8", **options),
    "int4": lambda *sizes, **options: ra.QuantisedCache(*sizes, format="int4", group=4, **options),
    "f16": lambda *sizes, **options: ra.QuantisedCache(*sizes, format="f16", **options),
}
REFUSED = {
    "latent": lambda dtype: ra.LatentCache(2, 5, 2, dtype=dtype),
    "per head": lambda dtype: ra.PerHeadCache(*SIZES, dtype=dtype),
    "key groups": lambda dtype: ra.KiviCache(*SIZES, format="int8", key_groups=2, dtype=dtype),
}


def normal(*shape, dtype):
    return RNG.standard_normal(shape).astype(dtype)


def tokens(count, dtype):
    return normal(2, 2, count, 8, dtype=dtype), normal(2, 2, count, 6, dtype=dtype)


@pytest.mark.parametrize("tier", ra.simd_tiers())
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_answers(kind, dtype, tier):
    cache, q = KINDS[kind](*SIZES, dtype=dtype), normal(2, 4, 2, 8, dtype=dtype)
    cache.append(*tokens(5, dtype), np.array([5, 3]))
    near = {"rtol": 1e-2, "atol": 1e-2} if np.dtype(dtype).itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
    for options in ({}, {"mask": ra.Mask(causal=True), "softcap": 2.0, "scale": 0.25}):
        want = cache.attend_steps(q, **options)
        got = cache.attend_simd(q, tier=tier, **options)
        assert (got.output.dtype, got.lse.dtype) == (want.output.dtype, want.lse.dtype)
        assert np.allclose(got.output.astype(float), want.output.astype(float), **near)
        assert np.allclose(got.lse, want.lse, **near)
    k, v = tokens(1, dtype)
    both = cache.fork()
    got = both.append_attend_simd(k, v, q, tier=tier)
    want = cache.append_attend(k, v, q)
    assert np.allclose(got.output.astype(float), want.output.astype(float), **near)
    assert [x.tolist() for x in both.read()] == [x.tolist() for x in cache.read()]


@pytest.mark.parametrize("kind", KINDS)
def test_both_or_nothing(kind):
    cache, q = KINDS[kind](*SIZES, dtype=np.float32), normal(2, 4, 1, 8, dtype=np.float32)
    k, v = tokens(2, np.float32)
    cache.append(k, v)
    before = [x.tolist() for x in cache.read()]
    for code, bad in [
        ("shape_mismatch", lambda: cache.append_attend_simd(k, v, q[..., :3])),
        ("shape_mismatch", lambda: cache.append_attend_simd(k, v[..., :3], q)),
        ("dtype_mismatch", lambda: cache.append_attend_simd(k, v, q.astype(float))),
        ("invalid_config", lambda: cache.append_attend_simd(k, v, q, softcap=-1.0)),
        ("invalid_config", lambda: cache.append_attend_simd(k, v, q, np.array([3, 0]))),
        ("invalid_config", lambda: cache.append_attend_simd(k, v, q, tier="sse9")),
        ("invalid_config", lambda: cache.attend_simd(q, tier="sse9")),
        ("shape_mismatch", lambda: cache.attend_simd(q[:1])),
    ]:
        with pytest.raises(ra.AttentionError) as caught:
            bad()
        assert caught.value.code == code
        assert [x.tolist() for x in cache.read()] == before


@pytest.mark.parametrize("kind", REFUSED)
def test_what_it_does_not_do_is_refused(kind):
    cache = REFUSED[kind](np.float32)
    with pytest.raises(ra.Unsupported):
        cache.check_simd()
    with pytest.raises(ra.Unsupported):
        cache.attend_simd(normal(2, 4, 1, 7 if kind == "latent" else 8, dtype=np.float32))


def test_a_refused_append_has_changed_nothing():
    for cache in (
        REFUSED["per head"](np.float32),
        REFUSED["key groups"](np.float32),
        ra.KVCache(*SIZES, track=True),
    ):
        with pytest.raises(ra.Unsupported):
            cache.append_attend_simd(*tokens(2, np.float32), normal(2, 4, 1, 8, dtype=np.float32))
        assert len(cache) == 0


def test_a_cache_that_it_does_is_not_refused():
    for make in KINDS.values():
        make(*SIZES, dtype=np.float32).check_simd()
        with pytest.raises(ra.InvalidConfig):
            make(*SIZES, dtype=np.float32).check_simd("sse9")
