"""Half types at the edge: inputs are widened, everything runs in f32, each result is rounded once."""

import ml_dtypes
import numpy as np
import pytest

import rosetta_attention_rs as ra

RNG = np.random.default_rng(5)
HALVES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


@pytest.fixture(params=HALVES)
def half(request):
    return request.param


def draw(*shape, half):
    return RNG.standard_normal(shape).astype(HALVES[half])


def wide(x):
    """The argument with all halves in it as f32."""
    if isinstance(x, np.ndarray):
        return x.astype(np.float32) if x.dtype in HALVES.values() else x
    return x


def parts(result):
    """The fields of a result by name; a bare array is the output."""
    if isinstance(result, np.ndarray):
        return {"output": result}
    flat = {}
    for name, x in result._asdict().items():
        flat |= (
            {f"{name}.{part}": y for part, y in x._asdict().items()} if hasattr(x, "_asdict") else {name: x}
        )
    return flat


def layer(half, convert):
    weights = np.random.default_rng(1)
    w = [weights.standard_normal(shape).astype(HALVES[half]) for shape in [(12, 5), (6, 5), (6, 5), (7, 12)]]
    norm = convert(weights.standard_normal(3).astype(HALVES[half]))
    return ra.MultiHeadAttention(*map(convert, w), 4, 2, q_norm=norm, rope=ra.Rope(rotary_dim=2))


X = (2, 4, 5, 6)
OPS = {
    "softmax": (ra.softmax_lse, [X]),
    "sdpa": (lambda q, k, v: ra.sdpa_steps(q, k, v, softcap=2.0, dropout=ra.Dropout(0.3, 7)), [X, X, X]),
    "flash": (ra.flash, [X, X, X]),
    "split_kv": (ra.split_kv, [X, X, X]),
    "simd": (ra.sdpa_simd, [X, X, X]),
    "varlen": (lambda q, k, v: ra.varlen(q, k, v, np.array([0, 2, 5]), np.array([0, 1, 5])), [(5, 4, 3)] * 3),
    "scoring": (lambda *x: ra.scoring_steps("general", *x[:3], w=x[3]), [(2, 3, 4)] * 3 + [(4, 4)]),
    "rope": (lambda x: ra.rope_steps(x, ra.Rope(interleaved=True)), [X]),
    "tables": (lambda x, cos, sin: ra.rope(x, cos=cos, sin=sin), [X, (9, 3), (9, 3)]),
    "sinusoidal": (ra.sinusoidal_steps, [(2, 3, 4)]),
    "alibi": (ra.alibi_steps, [X]),
    "relative_bias": (ra.relative_bias, [X, (8, 4)]),
    "dropout": (lambda x: ra.dropout(x, ra.Dropout(0.3, 7)), [X]),
}


@pytest.mark.parametrize("op", OPS)
def test_every_op_is_that_of_f32_rounded_once(op, half):
    call, shapes = OPS[op]
    arrays = [draw(*shape, half=half) for shape in shapes]
    for (name, got), want in zip(
        parts(call(*arrays)).items(), parts(call(*map(wide, arrays))).values(), strict=True
    ):
        assert got.dtype == (np.float32 if name == "lse" else HALVES[half]), name
        assert np.array_equal(got, want.astype(got.dtype)), name


def test_a_layer_rounds_nothing_in_between(half):
    x = draw(2, 3, 5, half=half)
    got, want = layer(half, lambda x: x).steps(x), layer(half, wide).steps(wide(x))
    for name, y in got._asdict().items():
        assert y.dtype == (np.float32 if name == "lse" else HALVES[half])
        assert np.array_equal(y, getattr(want, name).astype(y.dtype)), name


def test_packed_layers_of_halves(half):
    w_qkv, w_o, x = draw(18, 5, half=half), draw(4, 6, half=half), draw(1, 3, 5, half=half)
    packed = ra.MultiHeadAttention.packed(w_qkv, w_o, 2)
    parts = ra.MultiHeadAttention(*w_qkv.reshape(3, 6, 5), w_o, 2)
    assert packed.w_q.dtype == HALVES[half]
    assert np.array_equal(packed(x), parts(x))
    assert packed.num_parameters == 18 * 5 + 4 * 6


def test_merge_takes_the_lse_of_f32(half):
    output, lse = draw(2, 3, half=half), np.zeros(2, np.float32)
    merged = ra.merge(output, lse, output, lse)
    assert (merged.output.dtype, merged.lse.dtype) == (HALVES[half], np.float32)
    assert np.array_equal(merged.output, output)
    with pytest.raises(ra.DtypeMismatch, match="merge: b_lse: expected float32, got"):
        ra.merge(output, lse, output, lse.astype(HALVES[half]))


def test_a_cache_keeps_halves_and_attends_in_f32(half):
    cache = ra.KVCache(2, 4, 6, dtype=HALVES[half])
    q, k, v = (draw(*X, half=half) for _ in range(3))
    cache.append(k[:, :, :2], v[:, :, :2])
    cache.append(k[:, :, 2:], v[:, :, 2:])
    assert all(np.array_equal(x, y) for x, y in zip(cache.read()[:2], (k, v), strict=True))
    assert cache.keys().dtype == HALVES[half]
    steps = cache.attend_steps(q, mask=ra.Mask(causal=True))
    want = ra.sdpa_steps(wide(q), wide(k), wide(v), mask=ra.Mask(causal=True))
    assert np.array_equal(steps.output, want.output.astype(HALVES[half]))
    assert np.array_equal(steps.lse, want.lse)
    with pytest.raises(ra.DtypeMismatch):
        cache.append(wide(k), wide(v))
    with pytest.raises(ra.DtypeMismatch):
        cache.attend(wide(q))


def test_any_strides(half):
    x = draw(2, 5, 4, 12, half=half)
    turned = x.swapaxes(1, 2)[:, ::-1, :, ::2]
    shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    assert np.array_equal(ra.rope(turned), ra.rope(turned.copy()))
    assert np.array_equal(ra.rope(shifted), ra.rope(x))
    assert ra.sdpa(x[:0], x[:0], x[:0]).shape == (0, 5, 4, 12)


def test_types_do_not_mix(half):
    x = draw(*X, half=half)
    other = draw(*X, half="bf16" if half == "f16" else "f16")
    for q, k in [(x, other), (x, wide(x)), (wide(x), x)]:
        with pytest.raises(ra.DtypeMismatch, match="sdpa: k: expected"):
            ra.sdpa(q, k, k)
    with pytest.raises(ra.DtypeMismatch):
        ra.sdpa(x, x, x, bias=np.zeros(5, np.float32))
    with pytest.raises(ra.DtypeMismatch):
        ra.rope(x, cos=np.ones((9, 3), np.float32), sin=np.ones((9, 3), np.float32))
    with pytest.raises(ra.DtypeMismatch):
        ra.softmax(x.view(x.dtype.newbyteorder(">")) if half == "f16" else x.view(np.int16))


def test_casts():
    bits = np.arange(2**16, dtype=np.uint16)
    doubles = np.concatenate(
        [RNG.standard_normal(9999) * 2.0 ** RNG.integers(-30, 17, 9999), [np.nan, np.inf, 7e4]]
    )
    for name, dtype in HALVES.items():
        every = bits.view(dtype)
        floats = ra.cast(every, "f32")
        assert np.array_equal(floats, every.astype(np.float32), equal_nan=True)
        back = ra.cast(floats, name)
        numbers = ~np.isnan(floats)
        assert np.array_equal(back.view(np.uint16)[numbers], bits[numbers])
        assert np.all(np.isnan(back[~numbers].astype(np.float32)))
        assert np.array_equal(ra.widen(every), floats, equal_nan=True)
        assert ra.narrow(floats, name).dtype == dtype
    with np.errstate(over="ignore"):  # 7e4 has no f16
        assert np.array_equal(ra.cast(doubles, "f16"), doubles.astype(np.float16), equal_nan=True)
    assert ra.widen(doubles) is doubles
    tie = np.array(1 + 2.0**-8 + 2.0**-40)  # above the middle of two bf16, and the nearest f32 is the middle
    assert ra.cast(tie, "bf16").astype(np.float64) == 1 + 2.0**-7
    with pytest.raises(ra.Unsupported) as caught:
        ra.cast(doubles, "f8")
    assert caught.value.feature == "cast.f8"


def test_dropout_is_a_value():
    x = np.ones((1, 1, 2, 2), np.float32)
    for bad in [ra.Dropout(1.5, 0), ra.Dropout("1", 0), ra.Dropout(0.5, -1), ra.Dropout(0.5, 2**53), 0.5]:
        with pytest.raises(ra.InvalidConfig):
            ra.sdpa(x, x, x, dropout=bad)
        with pytest.raises(ra.InvalidConfig):
            ra.dropout(x, bad)
    with pytest.raises(ra.Unsupported):
        ra.sdpa_simd(x, x, x, dropout=ra.Dropout(0.5, 0))
