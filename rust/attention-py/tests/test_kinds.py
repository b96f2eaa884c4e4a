"""Linear, gated, sparse, structured and latent attention: options, halves and errors at the edge."""

import ml_dtypes
import numpy as np
import pytest

import rosetta_attention_rs as ra

RNG = np.random.default_rng(5)
HALVES = [np.float16, ml_dtypes.bfloat16]
LINEAR = {
    "linear_attention": ra.linear_attention,
    "linear_recurrent": ra.linear_recurrent,
    "linear_chunked": ra.linear_chunked,
}


def normal(*shape, dtype=np.float64):
    return RNG.standard_normal(shape).astype(dtype)


def wide(x):
    """Halves as float32; a state part by part."""
    return ra.LinearState(*map(wide, x)) if isinstance(x, tuple) else x.astype(np.float32)


def code(call, *arguments, **options):
    with pytest.raises(ra.AttentionError) as caught:
        call(*arguments, **options)
    assert str(caught.value).count(": expected ") == 1
    return caught.value.code


def flat(result):
    """All arrays of a result in a row."""
    return [x for part in result for x in (part if isinstance(part, tuple) else [part])]


# Linear attention


@pytest.mark.parametrize("name", LINEAR)
def test_a_state_goes_in_and_out(name):
    call, (q, k, v) = LINEAR[name], (normal(2, 4, 5, 3), normal(2, 2, 5, 3), normal(2, 2, 5, 2))
    whole = call(q, k, v, causal=True)
    first = call(q[:, :, :2], k[:, :, :2], v[:, :, :2], causal=True)
    second = call(q[:, :, 2:], k[:, :, 2:], v[:, :, 2:], causal=True, state=first.state)
    assert np.allclose(whole.output[:, :, 2:], second.output)
    assert np.allclose(whole.state.norm, second.state.norm)
    assert [x.shape for x in flat(whole)] == [(2, 4, 5, 2), (2, 2, 3, 2), (2, 2, 3)]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", LINEAR)
def test_linear_halves_are_computed_in_float32(name, half):
    call, (q, k, v) = LINEAR[name], (normal(1, 2, 4, 3, dtype=half) for _ in range(3))
    state = ra.LinearState(normal(1, 2, 3, 3, dtype=half), abs(normal(1, 2, 3, dtype=half)))
    got = flat(call(q, k, v, causal=True, state=state))
    want = flat(call(wide(q), wide(k), wide(v), causal=True, state=wide(state)))
    assert all(x.dtype == half and np.array_equal(x, y.astype(half)) for x, y in zip(got, want, strict=True))


@pytest.mark.parametrize("name", LINEAR)
def test_bad_linear_calls(name):
    call, x = LINEAR[name], normal(1, 2, 3, 4)
    assert code(call, x, x.astype(np.float32), x) == "dtype_mismatch"
    assert code(call, x, x[0], x) == "shape_mismatch"
    assert code(call, x[:, :, :2], x, x, causal=True) == "shape_mismatch"
    assert code(call, x, x, x, causal="yes") == "invalid_config"
    assert code(call, x, x, x, state=3) == "invalid_config"
    half = ra.LinearState(normal(1, 2, 4, 4, dtype=np.float32), normal(1, 2, 4))
    assert code(call, x, x, x, state=half) == "dtype_mismatch"


def test_chunk_is_an_integer():
    x = normal(1, 2, 3, 4)
    for chunk in (0, 1.5, True, None):
        assert code(ra.linear_chunked, x, x, x, chunk=chunk) == "invalid_config"


def test_gated_rules():
    x, one = normal(1, 2, 4, 3), np.ones((1, 1, 4, 1))
    none = np.zeros((1, 2, 4, 1))
    plain = ra.gated_linear(x, x, x)
    faded = ra.gated_linear(x, x, x, rule="gated", decay=none)
    assert np.array_equal(plain.output, faded.output)
    nothing = ra.gated_linear(x, x, x, rule="delta", beta=0 * one, state=plain.state)
    assert np.array_equal(nothing.state, plain.state)
    both = ra.gated_linear(x, x, x, rule="gated_delta", decay=none, beta=one, scale=0)
    assert not both.output.any()


@pytest.mark.parametrize("half", HALVES)
def test_gated_halves(half):
    x, decay = normal(1, 2, 4, 3, dtype=half), -abs(normal(1, 2, 4, 3, dtype=half))
    got = ra.gated_linear(x, x, x, rule="gated", decay=decay)
    want = ra.gated_linear(wide(x), wide(x), wide(x), rule="gated", decay=wide(decay))
    assert all(np.array_equal(a, b.astype(half)) for a, b in zip(got, want, strict=True))


def test_bad_gated_calls():
    x = normal(1, 2, 3, 4)
    for options in ({"rule": "Delta"}, {"rule": None}, {"rule": "gated"}, {"decay": x}, {"scale": "1"}):
        assert code(ra.gated_linear, x, x, x, **options) == "invalid_config"
    assert code(ra.gated_linear, x, x, x, rule="delta", beta=x) == "shape_mismatch"
    assert code(ra.gated_linear, x, x, x, state=x.astype(np.float32)) == "dtype_mismatch"


# Sparse patterns

TABLE = RNG.random((4, 5)) < 0.5
PATTERNS = [
    ra.Window(2, 1),
    ra.Dilated(2, 1, 3),
    ra.Strided(3),
    ra.Fixed(4, 1),
    ra.Global(1, 0, [3, 40, 0]),
    ra.BigBird(2, 1, 1, 2, 7),
    ra.Blocks(3, TABLE),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: type(pattern).__name__)
def test_patterns_say_the_same_in_every_way(pattern):
    q_len, kv_len = 11, 14
    table = ra.sparse_mask(pattern, q_len, kv_len)
    for i in range(q_len):
        keys = pattern.keys(i, q_len, kv_len)
        assert keys.dtype == np.int64
        assert keys.tolist() == np.flatnonzero(table[i]).tolist()
    i, j = np.arange(q_len)[:, None], np.arange(kv_len)
    assert np.array_equal(pattern.shows(i, j, q_len, kv_len), table)

    q, k, v = normal(2, 4, q_len, 3), normal(2, 2, kv_len, 3), normal(2, 2, kv_len, 2)
    steps = ra.sparse_steps(q, k, v, pattern, causal=True)
    mask = ra.sparse_mask(pattern, q_len, kv_len, causal=True)
    dense = ra.sdpa_steps(q, k, v, mask=ra.Mask(keep=mask))
    assert np.array_equal(steps.output, dense.output)
    assert np.array_equal(steps.lse, dense.lse)
    assert steps.visited.tolist() == mask.sum(axis=1).tolist()


@pytest.mark.parametrize("half", HALVES)
def test_sparse_halves(half):
    x = normal(1, 2, 6, 3, dtype=half)
    got = ra.sparse_steps(x, x, x, ra.Strided(2))
    want = ra.sparse_steps(wide(x), wide(x), wide(x), ra.Strided(2))
    assert np.array_equal(got.output, want.output.astype(half))
    assert (got.lse.dtype, got.visited.dtype) == (np.float32, np.int64)
    assert np.array_equal(got.lse, want.lse)


@pytest.mark.parametrize(
    ("expected", "pattern"),
    [
        ("invalid_config", None),
        ("invalid_config", "window"),
        ("invalid_config", ra.Window(-1, 0)),
        ("invalid_config", ra.Window(1.0, 0)),
        ("invalid_config", ra.Dilated(1, 1, 0)),
        ("invalid_config", ra.Strided(True)),
        ("invalid_config", ra.Fixed(2, 3)),
        ("invalid_config", ra.Global(0, 0, [-1])),
        ("invalid_config", ra.Global(0, 0, 3)),
        ("invalid_config", ra.BigBird(1, 0, 0, 0, 2**53)),
        ("invalid_config", ra.Blocks(0, TABLE)),
        ("shape_mismatch", ra.Blocks(2, TABLE)),
        ("shape_mismatch", ra.Blocks(2, TABLE[0])),
        ("dtype_mismatch", ra.Blocks(2, TABLE.astype(float))),
    ],
)
def test_bad_patterns(expected, pattern):
    x = normal(1, 1, 4, 2)
    assert code(ra.sparse, x, x, x, pattern) == expected
    assert code(ra.sparse_mask, pattern, 4, 4) == expected


# Structured and latent attention


def test_structured():
    h = normal(2, 3, 4)
    steps = ra.structured_steps(h, np.zeros((5, 4)), np.zeros((2, 5)), kv_lengths=np.array([3, 1]))
    assert np.allclose(steps.output[0], h[0].mean(axis=0))
    assert np.allclose(steps.output[1], h[1, 0])
    assert np.allclose(steps.penalty, [2 * (1 / 3 - 1) ** 2 + 2 / 9, 2])
    assert code(ra.structured, h, np.zeros((5, 3)), np.zeros((2, 5))) == "shape_mismatch"
    assert code(ra.structured, h, np.zeros((5, 4)), np.zeros((2, 5), np.float32)) == "dtype_mismatch"
    lengths = np.array([3, 1], np.int32)
    assert code(ra.structured, h, np.zeros((5, 4)), np.zeros((2, 5)), kv_lengths=lengths) == "dtype_mismatch"


def latent_layer(dtype=np.float64, **changes):
    shapes = {"w_q": (8, 3), "w_dkv": (3, 4), "w_kr": (2, 4), "w_uk": (4, 3), "w_uv": (2, 3), "w_o": (5, 2)}
    weights = {name: normal(*shape, dtype=dtype) for name, shape in shapes.items()}
    weights |= {"w_dq": normal(3, 4, dtype=dtype), "kv_norm": normal(3, dtype=dtype)}
    return ra.MultiHeadLatentAttention(**weights | {"num_heads": 2} | changes)


def test_latent_attention_absorbed():
    layer, x = latent_layer(q_norm=normal(3), rope=ra.Rope(base=100.0, interleaved=True)), normal(2, 5, 4)
    options = {"causal": True, "kv_lengths": np.array([5, 2]), "scale": 0.5}
    plain, absorbed = layer.steps(x, **options), layer.absorbed(x, **options)
    assert all(np.allclose(a, b) for a, b in zip(plain, absorbed, strict=True))
    assert np.array_equal(layer(x, **options), plain.output)
    shapes = [(2, 5, 5), (2, 2, 5, 5), (2, 2, 5), (2, 5, 3), (2, 5, 2)]
    assert [x.shape for x in plain] == shapes


@pytest.mark.parametrize("half", HALVES)
def test_latent_halves(half):
    steps = latent_layer(half).steps(normal(1, 3, 4, dtype=half))
    assert [x.dtype for x in steps] == [half, half, np.float32, half, half]


def test_bad_latent_layers():
    x = normal(1, 3, 4)
    for expected, changes in [
        ("invalid_config", {"num_heads": 2.0}),
        ("invalid_config", {"eps": None}),
        ("invalid_config", {"rope": 3}),
        ("invalid_config", {"w_dq": None, "q_norm": normal(3), "w_q": normal(8, 4)}),
        ("dtype_mismatch", {"w_uk": None}),
        ("dtype_mismatch", {"kv_norm": normal(3, dtype=np.float32)}),
        ("shape_mismatch", {"w_q": normal(8)}),
        ("shape_mismatch", {"w_kr": normal(3, 4)}),
    ]:
        layer = latent_layer(**changes)
        assert code(layer, x) == code(layer.absorbed, x) == expected, changes
