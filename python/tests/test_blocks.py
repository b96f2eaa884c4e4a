"""Norms, activations, feed-forward layers, blocks and the transformer: closed forms, and PyTorch's own layers."""

import math

import numpy as np
import pytest
from values import normal

import rosetta_attention as ra

INF, NAN = np.inf, np.nan


class TestNorms:
    def test_layer_norm_of_a_pair(self):
        steps = ra.layer_norm_steps(np.array([[1.0, 3]]), np.array([10.0, 100]), np.array([1.0, 2]), eps=0)
        np.testing.assert_array_equal(steps.output, [[-9, 102]])
        np.testing.assert_array_equal([steps.mean, steps.inv_std], [[2], [1]])

    def test_rms_norm_of_a_pair(self):
        got = ra.rms_norm(np.array([3.0, 4]), np.array([1.0, 2]), eps=0)
        np.testing.assert_allclose(got, np.array([3, 8]) / math.sqrt(12.5))

    def test_the_mean_is_taken_out_before_the_squares(self):
        x = np.float32([[10000, 10001, 10002]])
        np.testing.assert_allclose(ra.layer_norm(x), [[-1.2247, 0, 1.2247]], atol=1e-3)

    def test_eps_keeps_a_constant_row_at_zero(self, dtype):
        x = np.full((2, 3), 7, dtype)
        np.testing.assert_array_equal(ra.layer_norm(x), np.zeros((2, 3)))
        np.testing.assert_array_equal(ra.rms_norm(np.zeros((2, 3), dtype)), np.zeros((2, 3)))
        assert ra.layer_norm(x).dtype == ra.rms_norm(x).dtype == dtype

    @pytest.mark.parametrize("shape", [(1,), (0, 3), (2, 0, 1)], ids=str)
    def test_sizes(self, shape):
        steps = ra.layer_norm_steps(np.ones(shape))
        assert [x.shape for x in steps] == [shape, shape[:-1], shape[:-1]]
        assert ra.rms_norm(np.ones(shape)).shape == shape

    def test_refusals(self):
        for norm in (ra.layer_norm, ra.rms_norm):
            with pytest.raises(ra.ShapeMismatch, match=f"{norm.__name__}: x: expected at least one channel"):
                norm(np.ones((2, 0)))
            with pytest.raises(ra.ShapeMismatch, match=f"{norm.__name__}: weight: expected"):
                norm(np.ones((2, 3)), np.ones(2))
            with pytest.raises(ra.InvalidConfig, match=f"{norm.__name__}: eps: expected"):
                norm(np.ones((2, 3)), eps=-1)
        with pytest.raises(ra.InvalidConfig, match="norm: bias: expected None for rms"):
            ra.Norm(np.ones(3), np.ones(3), "rms")(np.ones((2, 3)))
        with pytest.raises(ra.InvalidConfig, match="norm: norm: expected layer or rms"):
            ra.Norm(kind="batch")(np.ones((2, 3)))


class TestActivations:
    def test_gelu_by_the_normal_distribution(self):
        x = np.array([-3.0, -1, 0, 0.5, 1, 3])
        want = [t * (1 + math.erf(t / math.sqrt(2))) / 2 for t in x]
        np.testing.assert_allclose(ra.gelu(x), want, rtol=1e-14)
        np.testing.assert_allclose(ra.gelu(np.array([1.0])), [0.8413447460685429], rtol=1e-15)

    def test_the_approximation_is_near(self):
        x = np.linspace(-6, 6, 301)
        far = np.abs(ra.gelu(x, approximate="tanh") - ra.gelu(x)).max()
        assert 1e-4 < far < 1e-3
        np.testing.assert_allclose(ra.gelu(np.array([1.0]), approximate="tanh"), [0.8411919906082768])

    def test_at_infinity_arithmetic_rules(self):
        for approximate in ("none", "tanh"):
            got = ra.gelu(np.array([INF, -INF, NAN]), approximate=approximate)
            np.testing.assert_array_equal(got, [INF, NAN, NAN])

    def test_swiglu(self, dtype):
        a, b = np.array([0, 2, -1000, 1000], dtype), np.array([5, 3, 2, 2], dtype)
        want = np.array([0, 6 / (1 + math.exp(-2)), 0, 2000])
        got = ra.swiglu(a, b)
        np.testing.assert_allclose(got, want, rtol=1e-6)
        assert got.dtype == dtype
        np.testing.assert_allclose(ra.swiglu(a, b, alpha=0), a * b / 2)

    def test_refusals(self):
        with pytest.raises(ra.InvalidConfig, match="gelu: approximate: expected none or tanh, got erf"):
            ra.gelu(np.ones(2), approximate="erf")
        with pytest.raises(ra.ShapeMismatch, match="swiglu: b: expected"):
            ra.swiglu(np.ones((2, 1)), np.ones(2))


def block(width=8, *, activation="gelu", kind="layer", cross=False, **options):
    """A block with random weights."""
    w = iter(normal(60, 16, 16, seed=3) / 3)

    def take(*shape):
        return next(w)[tuple(map(slice, shape)) if len(shape) == 2 else (0, slice(*shape))]

    def layer():
        return ra.MultiHeadAttention(*(take(width, width) for _ in range(4)), num_heads=2)

    gated = activation == "swiglu"
    return ra.Block(
        layer(),
        ra.FeedForward(
            *(take(16, width), take(width, 16), take(16), take(width)),
            w_3=take(16, width) if gated else None,
            activation=activation,
        ),
        *(ra.Norm(take(width), kind=kind) for _ in range(2)),
        cross=layer() if cross else None,
        norm_3=ra.Norm(take(width), kind=kind) if cross else None,
        **options,
    )


class TestBlock:
    @pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "swiglu"])
    @pytest.mark.parametrize("norm_first", [True, False])
    def test_is_the_sum_of_its_layers(self, activation, norm_first):
        layer = block(activation=activation, norm_first=norm_first, cross=True)
        x, context = normal(2, 3, 8), normal(2, 5, 8, seed=1)
        lengths, others = np.array([3, 1]), np.array([2, 5])
        got = layer(x, context, causal=True, kv_lengths=lengths, context_lengths=others)
        parts = (
            (layer.norm_1, lambda y: layer.attention(y, mask=ra.Mask(causal=True, kv_lengths=lengths))),
            (layer.norm_2, lambda y: layer.cross(y, context, mask=ra.Mask(kv_lengths=others))),
            (layer.norm_3, layer.feed_forward),
        )
        for norm, part in parts:
            x = x + part(norm(x)) if norm_first else norm(x + part(x))
        np.testing.assert_allclose(got, x, rtol=1e-12)

    def test_feed_forward_by_hand(self):
        layer = ra.FeedForward(np.array([[2.0], [-1]]), np.array([[1.0, 10]]), activation="relu")
        assert layer(np.array([[3.0], [-4]])).tolist() == [[6], [40]]
        gated = ra.FeedForward(*map(np.array, ([[2.0]], [[1.0]])), w_3=np.array([[5.0]]), activation="swiglu")
        np.testing.assert_allclose(gated(np.array([[1.0]])), [[10 / (1 + math.exp(-2))]])

    @pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8), (1, 1, 8)], ids=str)
    def test_sizes(self, shape):
        assert block()(np.ones(shape)).shape == shape

    def test_refusals(self):
        x = np.ones((1, 2, 8))
        for message, call in (
            ("block: context: expected None without cross-attention", lambda: block()(x, x)),
            ("block: context: expected a context", lambda: block(cross=True)(x)),
            ("feed_forward: activation: expected", lambda: block(activation="tanh")(x)),
            ("norm: norm: expected", lambda: block(kind="group")(x)),
            ("block: norm_first: expected", lambda: block(norm_first=1)(x)),
            ("block: causal: expected", lambda: block()(x, causal=0)),
        ):
            with pytest.raises(ra.InvalidConfig, match=message):
                call()
        with pytest.raises(ra.ShapeMismatch, match=r"block: attention.w_o: expected 7 rows"):
            block()(np.ones((1, 2, 7)))


class TestTransformer:
    def model(self, **change):
        norm = ra.Norm(normal(8, seed=4), normal(8, seed=5))
        parts = {
            "embedding": normal(11, 8, seed=6),
            "layers": (block(), block()),
            "position_embedding": normal(5, 8, seed=7),
            "final_norm": norm,
        }
        return ra.Transformer(**parts | change)

    TOKENS = np.array([[3, 10, 0], [7, 7, 7]])

    def test_is_the_chain_of_its_parts(self):
        model = self.model(
            segment_embedding=normal(2, 8, seed=8),
            embedding_norm=ra.Norm(normal(8, seed=9)),
            unembedding=normal(11, 8, seed=10),
        )
        segments = np.array([[0, 1, 1], [0, 0, 0]])
        steps = model.steps(self.TOKENS, segments, causal=True, kv_lengths=np.array([3, 2]))
        x = model.embedding[self.TOKENS] + model.position_embedding[:3] + model.segment_embedding[segments]
        x = model.embedding_norm(x)
        for layer in model.layers:
            x = layer(x, causal=True, kv_lengths=np.array([3, 2]))
        np.testing.assert_allclose(steps.output, model.final_norm(x), rtol=1e-12)
        np.testing.assert_allclose(steps.logits, steps.output @ model.unembedding.T, rtol=1e-11)

    def test_the_embedding_is_the_unembedding_where_there_is_none(self):
        model = self.model()
        steps = model.steps(self.TOKENS)
        np.testing.assert_allclose(steps.logits, steps.output @ model.embedding.T, rtol=1e-11)

    def test_causal_does_not_see_the_future(self):
        model, changed = self.model(), self.TOKENS.copy()
        changed[:, 2] = 1
        a, b = (model(tokens, causal=True) for tokens in (self.TOKENS, changed))
        np.testing.assert_allclose(a[:, :2], b[:, :2], rtol=1e-13)
        assert not np.allclose(a[:, 2], b[:, 2])

    @pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)], ids=str)
    def test_sizes(self, shape):
        steps = self.model().steps(np.zeros(shape, np.int64))
        assert (steps.output.shape, steps.logits.shape) == ((*shape, 8), (*shape, 11))

    def test_without_layers_it_is_a_table(self):
        model = self.model(layers=(), position_embedding=None, final_norm=None)
        np.testing.assert_array_equal(model(self.TOKENS), model.embedding[self.TOKENS])

    @pytest.mark.parametrize(
        ("error", "argument", "tokens", "change"),
        [
            (ra.DtypeMismatch, "tokens", np.zeros((1, 2)), {}),
            (ra.DtypeMismatch, "tokens", np.zeros((1, 2), np.int32), {}),
            (ra.ShapeMismatch, "tokens", np.zeros(2, np.int64), {}),
            (ra.InvalidConfig, "tokens", np.array([[11]]), {}),
            (ra.InvalidConfig, "tokens", np.array([[-1]]), {}),
            (ra.InvalidConfig, "tokens", np.zeros((1, 6), np.int64), {}),
            (ra.InvalidConfig, "segments", TOKENS, {"segment_embedding": np.zeros((2, 8))}),
            (ra.ShapeMismatch, "position_embedding", TOKENS, {"position_embedding": np.zeros((9, 7))}),
            (ra.ShapeMismatch, "unembedding", TOKENS, {"unembedding": np.zeros((10, 8))}),
        ],
        ids=str,
    )
    def test_refusals(self, error, argument, tokens, change):
        with pytest.raises(error, match=f"transformer: {argument}: expected"):
            self.model(**change)(tokens)


class TestCacheWrite:
    def test_linear_and_circular(self):
        cache, update = np.zeros((2, 1, 4, 1)), np.array([1.0, 2, 3]).reshape(1, 1, 3, 1).repeat(2, axis=0)
        got = ra.cache_write(cache, update, np.array([0, 1]))
        assert got[..., 0].tolist() == [[[1, 2, 3, 0]], [[0, 1, 2, 3]]]
        ring = ra.cache_write(cache, update, np.array([3, 6]), circular=True)
        assert ring[..., 0].tolist() == [[[2, 3, 0, 1]], [[3, 0, 1, 2]]]
        assert not cache.any()

    def test_room(self):
        cache, update = np.zeros((1, 4, 1)), np.ones((1, 3, 1))
        ra.cache_write(cache, update, np.array([1]))
        for wrong in (np.array([2]), np.array([4])):
            with pytest.raises(ra.CapacityExceeded, match="cache_write: update: expected"):
                ra.cache_write(cache, update, wrong)
        with pytest.raises(ra.CapacityExceeded):
            ra.cache_write(cache, np.ones((1, 5, 1)), circular=True)
        with pytest.raises(ra.InvalidConfig, match="cache_write: write_indices: expected values >= 0"):
            ra.cache_write(cache, update, np.array([-1]), circular=True)

    def test_nothing_to_write(self):
        assert ra.cache_write(np.zeros((1, 0, 2)), np.zeros((1, 0, 2)), circular=True).shape == (1, 0, 2)
        assert ra.cache_write(np.zeros((0, 3, 2)), np.zeros((0, 1, 2))).shape == (0, 3, 2)
