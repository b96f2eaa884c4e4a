"""Multi-head attention: projections, heads and what goes between them."""

import numpy as np
import pytest
from backends import Backend


def layer(lib: Backend, *, num_heads: int, num_kv_heads=None, **weights):
    """A layer from arrays or lists; `identity` sizes are given as an integer."""
    arrays = {
        name: lib.array(np.eye(w) if isinstance(w, int) else w, "float64")
        for name, w in weights.items()
        if w is not None
    }
    return lib.api.MultiHeadAttention(**arrays, num_heads=num_heads, num_kv_heads=num_kv_heads)


def steps(lib: Backend, layer, x, context=None, *, mask=None, **options):
    """output, weights and lse as NumPy arrays; checks that the short call agrees."""
    arguments = [lib.array(x)] + ([] if context is None else [lib.array(context)])
    options = {name: lib.convert(value) for name, value in options.items()} | {"mask": lib.mask(**mask or {})}
    result = [lib.to_numpy(part) for part in layer.steps(*arguments, **options)]
    np.testing.assert_array_equal(result[0], lib.to_numpy(layer(*arguments, **options)))
    return result


def test_heads_are_merged_side_by_side(lib):
    """B48: two positions that each see only themselves give their values back, not tokens and heads mixed."""
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
