"""Caches of every kind: dtypes, halves, errors at the edge, forks, files and threads."""

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import rosetta_attention_rs as ra

RNG = np.random.default_rng(6)
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
CAUSAL = ra.Mask(causal=True)
SIZES = (2, 2, 4, 3)  # B, Hkv, D, Dv
KINDS = {
    "contiguous": ra.KVCache,
    "rotating": lambda *sizes, **options: ra.RotatingCache(*sizes, window=3, keep=1, **options),
    "paged": lambda batch, *sizes, dtype, rope=None: ra.PagedCache(
        ra.PagePool(20, 2, *sizes, dtype=dtype), batch, rope=rope
    ),
    "quantised": lambda *sizes, **options: ra.QuantisedCache(*sizes, format="int8", group=3, **options),
    "cross": ra.CrossCache,
}


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def tokens(count, dtype=np.float32):
    return normal(2, 2, count, 4, dtype=dtype), normal(2, 2, count, 3, dtype=dtype)


def code(call, *arguments, **options):
    with pytest.raises(ra.AttentionError) as caught:
        call(*arguments, **options)
    return caught.value.code


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_in_and_out(kind, dtype):
    cache = KINDS[kind](*SIZES, dtype=dtype)
    assert isinstance(cache, ra.Cache)
    assert cache.kind == kind
    k, v = tokens(3, dtype)
    cache.append(k, v, np.array([3, 1]), padding="left")
    output = cache.attend(normal(2, 4, 2, 4, dtype=dtype))
    got_k, got_v, lengths = cache.read()
    assert (output.dtype, got_k.dtype, got_v.dtype, lengths.tolist()) == (dtype, dtype, dtype, [3, 1])
    if kind not in ("quantised", "rotating"):
        assert np.array_equal(got_v[1, :, 0], v[1, :, 2])
        assert cache.slot_positions().tolist() == [[0, 1, 2], [0, -1, -1]]
    other = np.float32 if dtype is np.float64 else np.float64
    assert code(cache.attend, normal(2, 4, 2, 4, dtype=other)) == "dtype_mismatch"
    cache.reset()
    assert code(cache.append, *tokens(1, other)) == "dtype_mismatch"
    assert code(cache.append, k, v, padding="middle") == "invalid_config"
    assert code(cache.append, k, v, np.array([1.0, 2.0])) == "dtype_mismatch"
    assert code(cache.reorder, [0]) == "shape_mismatch"
    assert len(cache) == 0


@pytest.mark.parametrize("rope", [None, ra.Rope()])
@pytest.mark.parametrize("kind", ["contiguous", "rotating", "paged", "quantised"])
def test_a_step_for_two(kind, rope):
    one, two = (KINDS[kind](*SIZES, dtype=np.float32, rope=rope) for _ in range(2))
    for count in (2, 1, 4):
        (k, v), q = tokens(count), normal(2, 4, count, 4)
        steps = one.append_attend(k, v, q, mask=CAUSAL)
        two.append(k, v)
        assert np.array_equal(steps.output, two.attend(q, mask=CAUSAL))
    held = one.read()
    k, v = tokens(1)
    assert code(one.append_attend, k, v, normal(2, 3, 1, 4)) == "shape_mismatch"
    assert all(np.array_equal(x, y) for x, y in zip(held, one.read(), strict=True))


def test_pages_go_back_to_the_pool():
    pool = ra.PagePool(4, 2, 1, 1)
    cache = ra.PagedCache(pool, 1)
    x = np.ones((1, 1, 3, 1), np.float32)
    cache.append(x, x, tokens=np.array([[5, 6, 7]]))
    fork = cache.fork()
    assert (pool.counts, cache.stats()[1:]) == ((2, 2, 2), (2 * 2 * 2 * 4, (2, 2, 2)))
    fork.append(x[:, :, :1], x[:, :, :1])
    assert pool.counts == (3, 1, 1)
    assert code(fork.append, x, x) == "capacity_exceeded"
    assert code(cache.append, x, x, tokens=np.array([[1.0, 2, 3]])) == "dtype_mismatch"
    del fork
    gc.collect()
    assert pool.counts == (2, 0, 2)


def test_codes_have_types_of_their_own():
    x = np.array([[-1.0, 0.5, 1.0]])
    expected = {  # type, and scale: the numbers are exact in f16 and bf16
        "f16": (np.float16, 0),
        "bf16": (ml_dtypes.bfloat16, 0),
        "int8": (np.int8, 1 / 127),
        "int4": (np.uint8, 1 / 7),
    }
    for name, (dtype, scale) in expected.items():
        codes = ra.quantise(x, name)
        assert (codes.codes.dtype, codes.scale is None) == (dtype, scale == 0)
        # Half a scale, and of three f32 roundings (of the scale, the quotient and the product) at most 2^-24 each.
        assert np.all(abs(ra.restore(codes) - x) <= scale / 2 + 3 * 2.0**-24 * (scale > 0))
    asymmetric = ra.quantise(x, "int8", 2, True)
    assert (asymmetric.codes.dtype, asymmetric.zero.tolist()) == (np.uint8, [[-1, 1]])
    assert ra.restore(ra.quantise(np.array([np.inf, np.nan]), "fp8_e4m3"))[0] == 448
    assert code(ra.restore, replace(asymmetric, channels=9)) == "shape_mismatch"
    assert code(ra.restore, replace(asymmetric, scale=asymmetric.scale[:, :1])) == "shape_mismatch"
    assert code(ra.restore, replace(asymmetric, zero=asymmetric.zero[:0])) == "shape_mismatch"
    assert code(ra.restore, replace(asymmetric, group=0)) == "invalid_config"
    assert code(ra.quantise, x, "int2") == "invalid_config"
    assert code(ra.quantise, x, "int8", 0) == "invalid_config"
    assert code(ra.quantise, np.arange(3), "int8") == "dtype_mismatch"
    cache = KINDS["quantised"](*SIZES, dtype=np.float64)
    cache.append(*tokens(2, np.float64))
    k, v = cache.codes()
    assert (k.codes.shape, k.scale.shape, v.scale.shape) == ((2, 2, 2, 4), (2, 2, 2, 2), (2, 2, 2, 1))
    assert np.array_equal(ra.restore(k), cache.read()[0])


def test_a_latent_cache():
    cache = ra.LatentCache(2, 3, 0, dtype=np.float64)
    latent, none = normal(2, 4, 3, dtype=np.float64), np.zeros((2, 4, 0))
    cache.append(latent, none)
    assert np.array_equal(cache.read()[0], latent)
    assert cache.attend(normal(2, 5, 1, 3, dtype=np.float64)).shape == (2, 5, 1, 3)
    assert code(cache.append, latent[:, None], none) == "shape_mismatch"
    assert not hasattr(cache, "evict")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_goes_on(kind, tmp_path):
    one, two = (KINDS[kind](*SIZES, dtype=np.float32) for _ in range(2))
    one.append(*tokens(3), np.array([3, 2]))
    ra.save(one, tmp_path / "cache.safetensors")
    ra.load(two, str(tmp_path / "cache.safetensors"))
    q = normal(2, 2, 1, 4)
    assert np.array_equal(one.attend(q), two.attend(q))
    assert code(ra.load, two, tmp_path / "nothing") == "invalid_request"
    assert code(ra.save, two, tmp_path / "no folder/cache") == "invalid_request"
    assert (
        code(ra.load, KINDS[kind](*SIZES, dtype=np.float64), tmp_path / "cache.safetensors")
        == "dtype_mismatch"
    )


@pytest.mark.parametrize("rope", [None, ra.Rope()])
@pytest.mark.parametrize("kind", ["contiguous", "rotating", "paged", "quantised"])
def test_decode_equals_the_whole(kind, rope):
    layer = ra.MultiHeadAttention(normal(16, 5), normal(8, 5), normal(6, 5), normal(7, 12), 4, 2, rope=rope)
    x, cache = normal(2, 3, 5), KINDS[kind](*SIZES, dtype=np.float32, rope=rope)
    steps = np.concatenate([layer.decode(x[:, t : t + 1], cache) for t in range(3)], axis=1)
    # Sums run in a fixed order, so the bits are the same.
    assert np.array_equal(steps, layer.decode(x, KINDS[kind](*SIZES, dtype=np.float32, rope=rope)))
    if kind != "quantised":
        assert np.array_equal(steps, layer(x, mask=CAUSAL))
    assert code(layer.decode, x.astype(float), cache) == "dtype_mismatch"
    wrong = KINDS[kind](*SIZES, dtype=np.float32, rope=ra.Rope() if rope is None else None)
    assert code(layer.decode, x, wrong) == "invalid_config"
    assert (len(cache), len(wrong)) == (3, 0)


def test_threads_share_a_cache():
    cache = ra.KVCache(1, 1, 1)
    x = np.ones((1, 1, 1, 1), np.float32)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: (cache.append(x, x), cache.attend(x)), range(50)))
    assert len(cache) == 50
