"""Half types: exact widening, one rounding, and the edge of every op."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from values import leaves, normal

import rosetta_attention as ra

HALF = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
CODES = np.arange(2**16, dtype=np.uint16)
INF, NAN = np.inf, np.nan


@pytest.fixture(params=HALF)
def half(request):
    return request.param


def test_every_code_goes_round(half):
    x = CODES.view(HALF[half])
    for wide in ("f32", "f64"):
        back = ra.cast(ra.cast(x, wide), half)
        nan = np.isnan(ra.cast(x, wide))
        np.testing.assert_array_equal(back.view(np.uint16)[~nan], CODES[~nan])
        assert np.isnan(ra.widen(back))[nan].all()


@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_halfway_goes_to_the_even_code_and_beyond_it_to_the_nearer(half, wide):
    """Between every two neighbours of the positive numbers, subnormals included."""
    codes = CODES[: 0x7C00 if half == "f16" else 0x7F80]  # what comes next is infinity
    exact = ra.widen(codes.view(HALF[half])).astype(np.float64)
    below, above = exact[:-1], exact[1:]
    middle = (below + above) / 2  # exact in float64, and mostly in float32
    fits = middle.astype(wide) == middle
    even = np.where(codes[:-1] % 2 == 0, codes[:-1], codes[1:])
    for sign in (1, -1):
        got = ra.cast((sign * middle).astype(wide), half).view(np.uint16) & 0x7FFF
        np.testing.assert_array_equal(got[fits], even[fits])
        down = ra.cast((sign * np.nextafter(middle.astype(wide), wide(0))).astype(wide), half)
        np.testing.assert_array_equal((down.view(np.uint16) & 0x7FFF)[fits], codes[:-1][fits])
        up = ra.cast((sign * np.nextafter(middle.astype(wide), wide(INF))).astype(wide), half)
        np.testing.assert_array_equal((up.view(np.uint16) & 0x7FFF)[fits], codes[1:][fits])


def test_f64_is_not_rounded_on_the_way():
    """1 + 2^-8 is halfway between two bf16; f32 would forget what is above it."""
    x = np.float64([1 + 2**-8, 1 + 2**-8 + 2**-40, 1 + 3 * 2**-8 - 2**-40, -1 - 2**-8 - 2**-40])
    np.testing.assert_array_equal(ra.widen(ra.cast(x, "bf16")), [1, 1 + 2**-7, 1 + 2**-7, -1 - 2**-7])
    x = np.float64([1 + 2**-11, 1 + 2**-11 + 2**-40])
    np.testing.assert_array_equal(ra.cast(x, "f16"), [1, 1 + 2**-10])


def test_what_is_too_large_is_infinite(half):
    largest = float(ml_dtypes.finfo(HALF[half]).max)
    step = 2 ** (5 if half == "f16" else 120)
    assert Fraction(largest) + step == 2 ** (16 if half == "f16" else 128)
    x = np.float64([largest + step / 2, np.nextafter(largest + step / 2, 0), INF, -1e300, NAN])
    np.testing.assert_array_equal(ra.widen(ra.cast(x, half)), np.float32([INF, largest, INF, -INF, NAN]))


def test_subnormals_and_signs_are_kept(half):
    least = float(ml_dtypes.finfo(HALF[half]).smallest_subnormal)
    x = np.float64([least, least / 2, least * 0.51, -least / 2, -0.0, 1e-320])
    got = ra.widen(ra.cast(x, half))
    np.testing.assert_array_equal(got, np.float32([least, 0, least, -0.0, -0.0, 0]))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1)], ids=str)
def test_shapes(shape):
    for to in ("f16", "bf16", "f32", "f64"):
        y = ra.cast(np.ones(shape, np.float32), to)
        assert y.shape == shape
        assert y.dtype == ra.cast(np.float64([1]), to).dtype


def test_refusals():
    with pytest.raises(ra.Unsupported) as caught:
        ra.cast(np.ones(2), "f8")
    assert caught.value.feature == "cast.f8"
    with pytest.raises(ra.DtypeMismatch, match=r"cast: x: expected float16 or .*, got int64"):
        ra.cast(np.ones(2, np.int64), "f32")


def layer(cast):
    """A small block with everything in it."""
    w = lambda *shape, seed: cast(normal(*shape, seed=seed) / 2)  # noqa: E731
    attention = ra.MultiHeadAttention(
        *(w(8, 8, seed=s) for s in range(4)),
        num_heads=2,
        b_q=w(8, seed=4),
        q_norm=w(4, seed=5),
        rope=ra.Rope(),
    )
    norms = (ra.Norm(w(8, seed=6), w(8, seed=7)), ra.Norm(w(8, seed=8)))
    return ra.Block(attention, ra.FeedForward(w(16, 8, seed=9), w(8, 16, seed=10)), *norms)


# Calls of float arrays made by `cast`; each gives an array or a tuple of them.
CALLS = {
    "softmax": lambda c: ra.softmax_lse(c(normal(3, 4))),
    "sdpa": lambda c: ra.sdpa_steps(c(normal(2, 4, 3, 5)), c(normal(2, 2, 6, 5)), c(normal(2, 2, 6, 7))),
    "flash": lambda c: ra.flash(*(c(normal(1, 2, 9, 4, seed=s)) for s in range(3)), block_q=4, block_k=3),
    "split": lambda c: ra.split_kv(*(c(normal(1, 2, 9, 4, seed=s)) for s in range(3))),
    "varlen": lambda c: ra.varlen(
        *(c(normal(5, 2, 4, seed=s)) for s in range(3)), *[np.array([0, 2, 5])] * 2
    ),
    "rope": lambda c: ra.rope_steps(c(normal(1, 2, 3, 4))),
    "alibi": lambda c: ra.alibi_steps(c(normal(1, 3, 3, 4))),
    "linear": lambda c: ra.linear_attention(*(c(normal(1, 2, 3, 4, seed=s)) for s in range(3))),
    "dropout": lambda c: ra.dropout(c(normal(40)), ra.Dropout(0.5, 1)),
    "layer_norm": lambda c: ra.layer_norm_steps(c(normal(3, 5)), c(normal(5)), c(normal(5))),
    "gelu": lambda c: ra.gelu(c(normal(30))),
    "block": lambda c: layer(c)(c(normal(2, 3, 8)), causal=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_op_runs_in_f32_and_rounds_once(name, half):
    got = leaves(CALLS[name](lambda x: ra.cast(x, half)))
    want = leaves(CALLS[name](lambda x: ra.widen(ra.cast(x, half))))
    for (part, x), (_, y) in zip(got, want, strict=True):
        if part == "lse":
            assert x.dtype == np.float32
            np.testing.assert_array_equal(x, y)
        else:
            assert x.dtype == HALF[half], part
            assert x.tobytes() == ra.narrow(y, half).tobytes(), part


def test_half_types_are_bound_to_the_signature_as_others_are(half):
    for q in (normal(1, 1, 2, 4), ra.cast(normal(1, 1, 2, 4), half)):
        with pytest.raises(TypeError, match="positional argument"):
            ra.sdpa(q, q, q, q)
        with pytest.raises(TypeError, match="multiple values for argument 'q'"):
            ra.sdpa(q, q, q, q=q)
        with pytest.raises(TypeError, match=r"missing .* argument: 'v'"):
            ra.sdpa(q, q)


def test_types_are_not_mixed(half):
    q = ra.cast(normal(1, 1, 2, 4), half)
    other = ra.cast(q, "bf16" if half == "f16" else "f16")
    for k, v in ((ra.widen(q), q), (q, ra.widen(q)), (other, q)):
        with pytest.raises(ra.DtypeMismatch, match=r"sdpa: [kv]: expected b?float16, got"):
            ra.sdpa(q, k, v)
    with pytest.raises(ra.DtypeMismatch):
        layer(lambda x: ra.cast(x, half))(np.float32(normal(2, 3, 8)))


def test_the_lse_of_a_merge_is_f32(half):
    x = ra.cast(normal(2, 3), half)
    lse = np.float32([0, -INF])
    merged = ra.merge(x, lse, x, lse)
    assert merged.output.dtype == HALF[half]
    assert merged.lse.dtype == np.float32
    np.testing.assert_array_equal(merged.output[0].view(np.uint16), x[0].view(np.uint16))
    for wrong in (ra.cast(lse, half), lse.astype(np.float64)):
        with pytest.raises(ra.DtypeMismatch, match="merge: a_lse: expected float32"):
            ra.merge(x, wrong, x, lse)
    with pytest.raises(ra.DtypeMismatch, match="merge: b_output"):
        ra.merge(x, lse, ra.widen(x), lse)


def test_a_cache_stores_halves_and_attends_in_f32(half):
    k, v, q = (ra.cast(normal(2, 2, 3, 4, seed=s), half) for s in range(3))
    cache = ra.KVCache(2, 2, 4, dtype=HALF[half])
    cache.append(k[:, :, :1], v[:, :, :1])
    cache.append(k[:, :, 1:], v[:, :, 1:], np.array([2, 1]))
    steps = cache.attend_steps(q[:, :, :1])
    want = ra.sdpa_steps(q[:, :, :1], k, v, mask=ra.Mask(kv_lengths=np.array([3, 2])))
    assert steps.output.tobytes() == want.output.tobytes()
    assert steps.lse.dtype == np.float32
    read_k, _, lengths = cache.read()
    assert read_k.dtype == HALF[half]
    assert read_k[0].tobytes() == k[0].tobytes()
    assert lengths.tolist() == [3, 2]
    with pytest.raises(ra.DtypeMismatch):
        cache.append(ra.widen(k), v)
