"""Norms, activations, blocks, transformers, cache writes and random words: options, halves and errors at the edge."""

import math

import ml_dtypes
import numpy as np
import pytest

import rosetta_attention_rs as ra

RNG = np.random.default_rng(6)
HALVES = [np.float16, ml_dtypes.bfloat16]


def normal(*shape, dtype=np.float64):
    return RNG.standard_normal(shape).astype(dtype)


def code(call, *arguments, **options):
    with pytest.raises(ra.AttentionError) as caught:
        call(*arguments, **options)
    assert str(caught.value).count(": expected ") == 1
    return caught.value.code


# Element by element, and rows


def test_norms_and_activations():
    x, w, b = normal(2, 3, 5), normal(5), normal(5)
    steps = ra.layer_norm_steps(x, w, b, eps=0.1)
    assert np.allclose(steps.mean, x.mean(-1))
    assert np.allclose(steps.inv_std, 1 / np.sqrt(x.var(-1) + 0.1))
    assert np.allclose(steps.output, (x - steps.mean[..., None]) * steps.inv_std[..., None] * w + b)
    root = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    assert np.allclose(ra.rms_norm(x, w), x / root * w)
    # erfc(t) multiplies the error of t by at most 2 t^2 + 2: by 18 for |x| <= 4, where t is x / sqrt(2) after two
    # roundings. Those, and ten more of library functions and products on both sides, are below 64 units.
    erfc, room = np.vectorize(math.erfc), 64 * np.finfo(np.float64).eps
    assert np.all(abs(x) <= 4)
    assert np.allclose(ra.gelu(x), x / 2 * erfc(-x / math.sqrt(2)), rtol=room, atol=0)
    # 1 + tanh cancels for x < 0: the error of tanh, an argument of at most 6 roundings among it, is absolute.
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    assert np.allclose(ra.gelu(x, approximate="tanh"), x / 2 * (1 + tanh), rtol=0, atol=room)
    assert np.allclose(ra.swiglu(x, 2 * x, alpha=3), 2 * x * x / (1 + np.exp(-3 * x)))


def test_any_rank_and_any_strides():
    x = normal(4, 6)[::2, ::-3]
    for call in (ra.gelu, ra.rms_norm, ra.layer_norm, ra.Norm(kind="rms")):
        want = call(np.ascontiguousarray(x))
        assert np.array_equal(call(x), want)
        assert np.array_equal(call(x[0]), want[0])
    assert ra.gelu(np.float32(0)).shape == ()
    assert ra.layer_norm(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("half", HALVES)
def test_halves_are_computed_in_float32(half):
    x, w = normal(3, 5, dtype=half), normal(5, dtype=half)
    for call, arguments in [
        (ra.layer_norm, (x, w, w)),
        (ra.rms_norm, (x, w)),
        (ra.gelu, (x,)),
        (ra.swiglu, (x, x)),
    ]:
        want = call(*(a.astype(np.float32) for a in arguments)).astype(half)
        got = call(*arguments)
        assert got.dtype == half
        assert np.array_equal(got, want)


def test_bad_rows():
    x = normal(2, 5)
    assert code(ra.layer_norm, x, normal(4)) == "shape_mismatch"
    assert code(ra.layer_norm, x, x) == "shape_mismatch"
    assert code(ra.rms_norm, np.zeros((2, 0))) == "shape_mismatch"
    assert code(ra.rms_norm, x, normal(5, dtype=np.float32)) == "dtype_mismatch"
    assert code(ra.rms_norm, x, eps=-1) == "invalid_config"
    assert code(ra.layer_norm, x, eps="small") == "invalid_config"
    assert code(ra.gelu, x, approximate="erf") == "invalid_config"
    assert code(ra.gelu, [1.0]) == "dtype_mismatch"
    assert code(ra.swiglu, x, x[:1]) == "shape_mismatch"
    assert code(ra.swiglu, x, x, alpha=np.inf) == "invalid_config"


# Blocks


def attention(width=6, context=6, dtype=np.float64, **options):
    shapes = [(8, width), (4, context), (4, context), (width, 8)]
    return ra.MultiHeadAttention(*(normal(*shape, dtype=dtype) for shape in shapes), 2, 1, **options)


def block(dtype=np.float64, **changes):
    parts = {
        "attention": attention(dtype=dtype, rope=ra.Rope()),
        "feed_forward": ra.FeedForward(normal(10, 6, dtype=dtype), normal(6, 10, dtype=dtype)),
        "norm_1": ra.Norm(normal(6, dtype=dtype), normal(6, dtype=dtype)),
        "norm_2": ra.Norm(normal(6, dtype=dtype)),
    }
    return ra.Block(**parts | changes)


def test_a_block_is_its_parts():
    x, context = normal(2, 3, 6), normal(2, 4, 5)
    layer = block(cross=attention(context=5), norm_3=ra.Norm(kind="rms"))
    lengths = {"kv_lengths": np.array([3, 2]), "context_lengths": np.array([1, 4])}
    y = x + layer.attention(layer.norm_1(x), mask=ra.Mask(causal=True, kv_lengths=lengths["kv_lengths"]))
    y = y + layer.cross(layer.norm_2(y), context, mask=ra.Mask(kv_lengths=lengths["context_lengths"]))
    y = y + layer.feed_forward(layer.norm_3(y))
    assert np.allclose(layer(x, context, causal=True, **lengths), y)
    post = block(norm_first=False)
    y = post.norm_1(x + post.attention(x))
    assert np.allclose(post(x), post.norm_2(y + post.feed_forward(y)))


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_feed_forward(activation):
    x, w_1, w_2, b = normal(2, 3, 4), normal(5, 4), normal(4, 5), normal(5)
    hidden = x @ w_1.T + b
    tanh = "tanh" if activation == "gelu_tanh" else "none"
    active = np.maximum(hidden, 0) if activation == "relu" else ra.gelu(hidden, approximate=tanh)
    assert np.allclose(ra.FeedForward(w_1, w_2, b, activation=activation)(x), active @ w_2.T)
    gated = ra.FeedForward(w_1, w_2, b, w_3=-w_1, activation="swiglu")
    assert np.allclose(gated(x), ra.swiglu(hidden, -x @ w_1.T) @ w_2.T)
    assert np.array_equal(gated(x[0, 0]), gated(x)[0, 0])
    assert gated(x[:, :, None, ::-1][:0]).shape == (0, 3, 1, 4)


def test_bad_blocks():
    x = normal(1, 3, 6)
    feed_forward = ra.FeedForward(normal(10, 6), normal(6, 10), activation="swiglu")
    for expected, changes in [
        ("invalid_config", {"feed_forward": feed_forward}),
        ("invalid_config", {"feed_forward": ra.FeedForward(normal(3, 6), normal(6, 3), activation="silu")}),
        ("invalid_config", {"norm_1": ra.Norm(kind="batch")}),
        ("invalid_config", {"norm_1": ra.Norm(bias=normal(6), kind="rms")}),
        ("invalid_config", {"norm_1": ra.Norm(eps=-1.0)}),
        ("invalid_config", {"norm_first": "yes"}),
        ("invalid_config", {"norm_3": ra.Norm()}),
        ("invalid_config", {"cross": attention(), "norm_3": ra.Norm()}),
        ("dtype_mismatch", {"norm_2": ra.Norm(normal(6, dtype=np.float32))}),
        ("shape_mismatch", {"norm_2": ra.Norm(normal(5))}),
        ("shape_mismatch", {"attention": attention(width=5)}),
    ]:
        assert code(block(**changes), x) == expected, changes
    assert code(block(), x[0]) == "shape_mismatch"
    assert code(block(), x, kv_lengths=np.array([4])) == "invalid_config"
    assert code(block(), x, kv_lengths=np.array([3.0])) == "dtype_mismatch"


# Transformers


def model(dtype=np.float64, **changes):
    parts = {
        "embedding": normal(7, 6, dtype=dtype),
        "layers": (block(dtype), block(dtype)),
        "position_embedding": normal(5, 6, dtype=dtype),
        "final_norm": ra.Norm(normal(6, dtype=dtype)),
    }
    return ra.Transformer(**parts | changes)


def test_a_transformer_is_its_parts():
    tokens, segments = np.array([[3, 0, 6], [1, 1, 2]]), np.array([[0, 1, 1], [0, 0, 0]])
    whole = model(segment_embedding=normal(2, 6), embedding_norm=ra.Norm(), unembedding=normal(7, 6))
    x = whole.embedding[tokens] + whole.position_embedding[:3] + whole.segment_embedding[segments]
    x = whole.embedding_norm(x)
    for layer in whole.layers:
        x = layer(x, causal=True, kv_lengths=np.array([3, 2]))
    output = whole.final_norm(x)
    steps = whole.steps(tokens, segments, causal=True, kv_lengths=np.array([3, 2]))
    assert np.allclose(steps.output, output)
    assert np.allclose(steps.logits, output @ whole.unembedding.T)
    tied = model(layers=(), position_embedding=None, final_norm=None)
    assert np.allclose(tied.steps(tokens).logits, tied.embedding[tokens] @ tied.embedding.T)


@pytest.mark.parametrize("half", HALVES)
def test_nothing_inside_a_transformer_is_rounded(half):
    narrow = model(half)
    parts = {name: widen(part) for name, part in vars(narrow).items()}
    widened = ra.Transformer(**parts | {"layers": tuple(map(widen, narrow.layers))})
    got, want = (m.steps(np.array([[1, 2, 3]])) for m in (narrow, widened))
    assert got.logits.dtype == half
    assert np.array_equal(got.output, want.output.astype(half))
    assert np.array_equal(got.logits, want.logits.astype(half))


def widen(x):
    """Halves as float32, those of a layer and of the layers in it, too."""
    if isinstance(x, np.ndarray):
        return x.astype(np.float32)
    if isinstance(x, ra.Block | ra.MultiHeadAttention | ra.FeedForward | ra.Norm):
        return type(x)(**{name: widen(part) for name, part in vars(x).items()})
    return x


def test_bad_transformers():
    tokens = np.array([[1, 2]])
    assert code(model(), tokens.astype(np.int32)) == "dtype_mismatch"
    assert code(model(), tokens[0]) == "shape_mismatch"
    assert code(model(), np.array([[7]])) == "invalid_config"
    assert code(model(), np.array([[-1]])) == "invalid_config"
    assert code(model(), np.zeros((1, 6), np.int64)) == "invalid_config"
    assert code(model(), tokens, tokens) == "invalid_config"
    assert code(model(segment_embedding=normal(2, 6)), tokens) == "invalid_config"
    assert code(model(unembedding=normal(6, 6)), tokens) == "shape_mismatch"
    assert code(model(unembedding=normal(7, 6, dtype=np.float32)), tokens) == "dtype_mismatch"


# Cache writes and random words


@pytest.mark.parametrize("dtype", [*HALVES, np.float32, np.float64])
def test_cache_write(dtype):
    cache, update = np.zeros((2, 3, 4, 1), dtype), np.ones((2, 3, 2, 1), dtype)
    output = ra.cache_write(cache, update, np.array([1, 3]), circular=True)
    assert output.dtype == dtype
    assert output[:, 0, :, 0].tolist() == [[0, 1, 1, 0], [1, 0, 0, 1]]
    assert not cache.any()
    assert code(ra.cache_write, cache, update, np.array([1, 3])) == "capacity_exceeded"
    assert code(ra.cache_write, cache, update, np.array([1, -3])) == "invalid_config"
    assert code(ra.cache_write, cache, update, np.array([1.0, 2.0])) == "dtype_mismatch"
    assert code(ra.cache_write, cache, update[:1]) == "shape_mismatch"
    assert code(ra.cache_write, cache, update, circular=1) == "invalid_config"


def test_philox_words():
    words = ra.philox_words(0, 0, 6)
    assert words.dtype == np.uint32
    assert words[:4].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert np.array_equal(ra.philox_words(0, 3, 3), words[3:])
    assert code(ra.philox_words, -1, 0, 1) == "invalid_config"
