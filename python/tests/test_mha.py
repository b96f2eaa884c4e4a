"""Multi-head attention: projections, heads and what goes between them."""

import numpy as np
import pytest
from backends import Backend

import rosetta_attention as ra


def layer(lib: Backend, *, num_heads: int, num_kv_heads=None, **weights):
    """A layer from arrays or lists; `identity` sizes are given as an integer."""
    arrays = {
        name: lib.array(np.eye(w) if isinstance(w, int) else w, "float64")
        for name, w in weights.items()
        if w is not None
    }
    return lib.api.MultiHeadAttention(**arrays, num_heads=num_heads, num_kv_heads=num_kv_heads)


def steps(lib: Backend, layer, x, context=None, *, mask=None, **options):
    """Output, weights and lse as NumPy arrays; checks that the short call agrees."""
    arguments = [lib.array(x)] + ([] if context is None else [lib.array(context)])
    options = {name: lib.convert(value) for name, value in options.items()} | {"mask": lib.mask(**mask or {})}
    result = [lib.to_numpy(part) for part in layer.steps(*arguments, **options)]
    np.testing.assert_array_equal(result[0], lib.to_numpy(layer(*arguments, **options)))
    return result[:3]


def test_heads_are_merged_side_by_side(lib):
    """HeadReshape: two positions that each see only themselves give their values back, not tokens and heads mixed."""
    x = np.array([[[1.0, 2, 5, 6], [3, 4, 7, 8]]])
    attention = layer(lib, w_q=4, w_k=4, w_v=4, w_o=4, num_heads=2)
    output, weights, lse = steps(lib, attention, x, mask={"window": (0, 0)})
    np.testing.assert_array_equal(output, x)
    np.testing.assert_array_equal(weights, np.broadcast_to(np.eye(2), (1, 2, 2, 2)))
    # Each position scores itself with |its half|² / sqrt(2).
    np.testing.assert_allclose(lse, np.array([[[5, 25], [61, 113]]]) / np.sqrt(2))


def test_weights_are_out_by_in_and_biases_are_added(lib):
    attention = layer(
        lib,
        w_q=[[0, 0]],
        w_k=[[0, 0]],
        w_v=[[1, 10], [0, 1]],
        w_o=[[1, 2]],
        b_q=[1],
        b_k=[1],
        b_v=[100, 200],
        b_o=[1000],
        num_heads=1,
    )
    output, *_ = steps(lib, attention, [[[1.0, 2]]])
    # v = (1 + 20 + 100, 2 + 200), o = 121 + 2 * 202 + 1000
    np.testing.assert_array_equal(output, [[[1525]]])


def test_blocks_of_rows_are_heads(lib):
    """Query heads 0, 1 read KV head 0, and 2, 3 read KV head 1."""
    attention = layer(
        lib,
        w_q=np.zeros((4, 1)),
        w_k=np.zeros((2, 1)),
        w_v=[[10], [20]],
        w_o=4,
        num_heads=4,
        num_kv_heads=2,
    )
    output, *_ = steps(lib, attention, [[[1.0]]])
    np.testing.assert_array_equal(output, [[[10, 10, 20, 20]]])


def test_context_of_another_width_and_length(lib):
    """Queries from x (B, 2, 1), keys and values from context (B, 3, 2), values of size 3."""
    attention = layer(lib, w_q=[[0]], w_k=[[0, 0]], w_v=[[1, 0], [0, 1], [1, 1]], w_o=3, num_heads=1)
    output, weights, lse = steps(lib, attention, [[[5.0], [6]]], [[[1.0, 0], [2, 0], [6, 3]]])
    np.testing.assert_allclose(output, [[[3, 1, 4]] * 2])
    np.testing.assert_allclose(weights, np.full((1, 1, 2, 3), 1 / 3))
    np.testing.assert_allclose(lse, np.full((1, 1, 2), np.log(3)))


def test_options_reach_the_attention(lib):
    rng = np.random.default_rng(7)
    x = rng.standard_normal((2, 3, 4))
    weights = {name: rng.standard_normal((4, 4)) for name in ("w_q", "w_k", "w_v", "w_o")}
    attention = layer(lib, **weights, num_heads=2)
    options = {"scale": 0.7, "softcap": 1.5, "bias": rng.standard_normal((2, 1, 3))}
    mask = {"causal": True, "kv_lengths": [3, 2], "q_offset": [0, 1]}
    output, got_weights, lse = steps(lib, attention, x, mask=mask, **options)

    def heads(name):
        return (x @ weights[name].T).reshape(2, 3, 2, 2).swapaxes(1, 2)

    want = lib.sdpa(*(heads(name) for name in ("w_q", "w_k", "w_v")), mask=mask, **options)
    np.testing.assert_allclose(got_weights, want.weights, rtol=1e-12)
    np.testing.assert_allclose(lse, want.lse, rtol=1e-12)
    merged = want.output.swapaxes(1, 2).reshape(2, 3, 4)
    np.testing.assert_allclose(output, merged @ weights["w_o"].T, rtol=1e-12)


def test_a_row_without_a_visible_key_gives_the_output_bias(lib):
    attention = layer(lib, w_q=2, w_k=2, w_v=2, w_o=2, b_o=[7, 8], num_heads=1)
    output, _, lse = steps(lib, attention, [[[1.0, 2]]], mask={"kv_lengths": [0]})
    np.testing.assert_array_equal(output, [[[7, 8]]])
    assert lse.item() == -np.inf


@pytest.mark.parametrize("sizes", [(0, 2, 2), (2, 0, 3), (2, 3, 0)], ids=str)
def test_sizes_of_zero(lib, sizes):
    B, Tq, Tk = sizes
    attention = layer(lib, w_q=4, w_k=4, w_v=4, w_o=np.ones((5, 4)), num_heads=2)
    output, weights, lse = steps(lib, attention, np.ones((B, Tq, 4)), np.ones((B, Tk, 4)))
    assert output.shape == (B, Tq, 5)
    assert weights.shape == (B, 2, Tq, Tk)
    assert lse.shape == (B, 2, Tq)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_padding_may_hold_anything(lib, poison):
    rng = np.random.default_rng(3)
    attention = layer(lib, w_q=4, w_k=4, w_v=4, w_o=4, num_heads=2)
    x = rng.standard_normal((1, 3, 4))
    padded = np.concatenate([x, np.full((1, 2, 4), poison)], axis=1)
    output, *_ = steps(lib, attention, padded, mask={"kv_lengths": [3]})
    np.testing.assert_allclose(output[:, :3], steps(lib, attention, x)[0], rtol=1e-12)


def test_dtype_stays(lib, dtype):
    weights = {name: lib.array(np.eye(2), dtype) for name in ("w_q", "w_k", "w_v", "w_o")}
    biases = {name: lib.array(np.ones(2), dtype) for name in ("b_q", "b_k", "b_v", "b_o")}
    attention = lib.api.MultiHeadAttention(**weights, **biases, num_heads=2)
    for part in attention.steps(lib.array(np.ones((1, 3, 2)), dtype), scale=np.float64(0.5), softcap=3):
        assert lib.to_numpy(part).dtype == dtype


class TestWhatCameLater:
    """Packed projections, norms of queries and keys, rotation, pruned heads; in NumPy."""

    X = np.random.default_rng(11).standard_normal((2, 3, 8))

    def weights(self, kv_heads=4):
        rng = np.random.default_rng(12)
        shapes = {"w_q": (8, 8), "w_k": (2 * kv_heads, 8), "w_v": (2 * kv_heads, 8), "w_o": (8, 8)}
        return {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    def test_packed_projections(self):
        """PackedLayout: two ways to lay out fused weights."""
        w = self.weights(kv_heads=2) | {"b_q": np.arange(8.0), "b_k": np.arange(4.0), "b_v": -np.arange(4.0)}
        plain = ra.MultiHeadAttention(**w, num_heads=4, num_kv_heads=2)
        for kind in "wb":
            q, k, v = (w[f"{kind}_{part}"] for part in "qkv")
            w[f"{kind}_blocks"] = np.concatenate([q, k, v])
            w[f"{kind}_heads"] = np.concatenate([q[:4], k[:2], v[:2], q[4:], k[2:], v[2:]])
        for packing in ("blocks", "heads"):
            packed = ra.MultiHeadAttention.packed(
                *(w[f"w_{packing}"], w["w_o"], 4, 2), packing=packing, b_qkv=w[f"b_{packing}"]
            )
            np.testing.assert_array_equal(packed(self.X), plain(self.X))
            assert packed.num_parameters == plain.num_parameters

    def test_norms_of_queries_and_keys(self):
        w, norms = self.weights(), {"q_norm": np.array([1.0, 2]), "k_norm": np.array([3.0, 0.5])}
        steps = ra.MultiHeadAttention(**w, **norms, num_heads=4).steps(self.X)
        heads = [(self.X @ w[name].T).reshape(2, 3, 4, 2).swapaxes(1, 2) for name in ("w_q", "w_k", "w_v")]
        q, k = (ra.rms_norm(x, norm, eps=1e-6) for x, norm in zip(heads, norms.values(), strict=False))
        np.testing.assert_allclose(steps.weights, ra.sdpa_steps(q, k, heads[2]).weights, rtol=1e-12)

    def test_rotation(self):
        w, positions = self.weights(), np.array([[0, 1, 2], [7, 5, 9]])
        layer = ra.MultiHeadAttention(**w, num_heads=4, rope=ra.Rope())
        heads = [(self.X @ w[name].T).reshape(2, 3, 4, 2).swapaxes(1, 2) for name in ("w_q", "w_k", "w_v")]
        q, k = (ra.rope(x, positions=positions) for x in heads[:2])
        want = ra.sdpa_steps(q, k, heads[2]).weights
        np.testing.assert_allclose(layer.steps(self.X, positions=positions).weights, want, rtol=1e-11)
        far = ra.MultiHeadAttention(**w, num_heads=4, rope=ra.Rope(offset=50))
        np.testing.assert_allclose(far(self.X), layer(self.X), rtol=1e-9)  # distances are the same

    def test_pruned_heads_contribute_nothing(self):
        w, head_mask = self.weights(), np.array([True, False, True, False])
        got = ra.MultiHeadAttention(**w, num_heads=4).steps(self.X, head_mask=head_mask)
        without = w | {"w_o": w["w_o"] * np.repeat(head_mask, 2)}
        want = ra.MultiHeadAttention(**without, num_heads=4).steps(self.X)
        np.testing.assert_allclose(got.output, want.output, rtol=1e-12)
        np.testing.assert_array_equal(got.weights, want.weights)

    def test_mean_weights_and_dropout(self):
        layer = ra.MultiHeadAttention(**self.weights(), num_heads=4)
        steps = layer.steps(self.X, dropout=ra.Dropout(1, 0))
        np.testing.assert_allclose(steps.mean_weights, steps.weights.mean(axis=1), rtol=1e-13)
        np.testing.assert_allclose(steps.mean_weights.sum(axis=-1), np.ones((2, 3)))
        assert not steps.output.any()

    def test_one_head_and_many_have_equally_many_parameters(self):
        w = self.weights()
        counts = {ra.MultiHeadAttention(**w, num_heads=heads).num_parameters for heads in (1, 2, 4, 8)}
        assert counts == {4 * 8 * 8}
        assert ra.MultiHeadAttention(**w, num_heads=4, b_o=np.ones(8)).num_parameters == 4 * 8 * 8 + 8

    @pytest.mark.parametrize(
        ("error", "argument", "change", "options"),
        [
            (ra.ShapeMismatch, "q_norm", {"q_norm": np.ones(3)}, {}),
            (ra.InvalidConfig, "qk_norm_eps", {"qk_norm_eps": -1}, {}),
            (ra.InvalidConfig, "context", {"rope": ra.Rope()}, {"context": X}),
            (ra.InvalidConfig, "positions", {}, {"positions": np.zeros((2, 3), np.int64)}),
            (ra.ShapeMismatch, "positions", {"rope": ra.Rope()}, {"positions": np.zeros((2, 4), np.int64)}),
            (ra.DtypeMismatch, "head_mask", {}, {"head_mask": np.ones(4)}),
            (ra.ShapeMismatch, "head_mask", {}, {"head_mask": np.ones(3, bool)}),
        ],
        ids=str,
    )
    def test_refusals(self, error, argument, change, options):
        layer = ra.MultiHeadAttention(**self.weights(), num_heads=4, **change)
        with pytest.raises(error, match=f"mha: {argument}: expected"):
            layer(self.X, **options)

    @pytest.mark.parametrize(
        ("error", "argument", "change"),
        [
            (ra.ShapeMismatch, "w_qkv", {"w_qkv": np.ones((23, 8))}),
            (ra.ShapeMismatch, "b_qkv", {"b_qkv": np.ones(8)}),
            (ra.InvalidConfig, "packing", {"packing": "rows"}),
            (ra.InvalidConfig, "num_kv_heads", {"num_kv_heads": 3}),
        ],
        ids=str,
    )
    def test_refusals_of_packed_weights(self, error, argument, change):
        arguments = {"w_qkv": np.ones((24, 8)), "w_o": np.eye(8), "num_heads": 4} | change
        with pytest.raises(error, match=f"mha: {argument}: expected"):
            ra.MultiHeadAttention.packed(**arguments)
