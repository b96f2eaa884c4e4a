"""Positions and the nearest relatives of sdpa through Python: their options, and what is refused."""

import re

import numpy as np
import pytest

import rosetta_attention_rs as ra

X = np.ones((1, 2, 3, 4))
QKV = (np.ones((1, 3, 2)), np.ones((1, 4, 2)), np.ones((1, 4, 5)))
ROWS = (np.ones((3, 2, 2)), np.ones((4, 1, 2)), np.ones((4, 1, 2)))
ADDITIVE = {"w_q": np.ones((3, 2)), "w_k": np.ones((3, 2)), "w_v": np.ones(3)}
CU = (np.array([0, 1, 3]), np.array([0, 4, 4]))


def rope(scaling):
    return lambda: ra.rope(X, ra.Rope(scaling=scaling))


def test_numbers_of_any_kind_are_numbers():
    scalings = [
        ra.LinearScaling(2),
        ra.DynamicScaling(np.float32(2), np.int64(2)),
        ra.YarnScaling(4, 64, truncate=np.False_),
        ra.Llama3Scaling(8.0, 2),
        ra.LongRopeScaling((1, 2.0), np.array([2.0, 4.0]), 2, factor=4),
    ]
    plain = ra.rope(X)
    for scaling in scalings:
        changed = ra.rope_steps(X, ra.Rope(scaling=scaling))
        assert changed.output.shape == X.shape
        assert not np.array_equal(changed.output, plain), scaling
    assert np.array_equal(
        ra.rope(X, ra.Rope(offset=np.int64(5))), ra.rope(X, positions=np.array([[5, 6, 7]]))
    )


def test_tables_take_the_place_of_angles():
    steps = ra.rope_steps(X)
    assert np.array_equal(ra.rope(X, cos=steps.cos[0], sin=steps.sin[0]), steps.output)


def test_split_and_flash_take_their_sizes():
    want = ra.sdpa_steps(X, X, X, mask=ra.Mask(causal=True))
    for rung in (
        ra.flash(X, X, X, mask=ra.Mask(causal=True), block_q=2, block_k=1),
        ra.split_kv(X, X, X, mask=ra.Mask(causal=True), splits=np.int64(2)),
    ):
        assert np.allclose(rung.output, want.output)
        assert np.allclose(rung.lse, want.lse)


BAD_CALLS = {
    "invalid_config": [
        lambda: ra.rope(X, None),
        lambda: ra.rope(X, ra.Rope(base=0)),
        lambda: ra.rope(X, ra.Rope(base="1")),
        lambda: ra.rope(X, ra.Rope(interleaved=1)),
        lambda: ra.rope(X, ra.Rope(rotary_dim=3)),
        lambda: ra.rope(X, ra.Rope(rotary_dim=2.0)),
        lambda: ra.rope(X, ra.Rope(rotary_dim=-2)),
        lambda: ra.rope(X, ra.Rope(offset=0.5)),
        lambda: ra.rope(X, ra.Rope(offset=1), positions=np.array([[0, 1, 2]])),
        lambda: ra.rope(X, cos=np.ones((3, 2))),
        lambda: ra.rope(X, cos=np.ones((2, 2)), sin=np.ones((2, 2))),
        lambda: ra.rope(X, ra.Rope(base=5.0), cos=np.ones((3, 2)), sin=np.ones((3, 2))),
        rope("linear"),
        rope(ra.LinearScaling(-1)),
        rope(ra.LinearScaling(None)),
        rope(ra.DynamicScaling(2, 0)),
        rope(ra.DynamicScaling(2, 8, 0)),
        rope(ra.YarnScaling(2, 8, beta_slow=0)),
        rope(ra.YarnScaling(2, 8, attention_factor=np.inf)),
        rope(ra.YarnScaling(2, 8, truncate=1)),
        lambda: ra.rope(X, ra.Rope(base=1, scaling=ra.YarnScaling(2, 8))),
        rope(ra.Llama3Scaling(2, 8, 4, 4)),
        rope(ra.LongRopeScaling([1], [1, 1], 8)),
        rope(ra.LongRopeScaling([1, 0], [1, 1], 8)),
        rope(ra.LongRopeScaling(1, [1, 1], 8)),
        rope(ra.LongRopeScaling([1, 1], [1, 1], 1, factor=2)),
        lambda: ra.sinusoidal(X[0], base=-1),
        lambda: ra.sinusoidal(X[0], halves="yes"),
        lambda: ra.alibi(X, q_offset=0.5),
        lambda: ra.relative_bias(X, np.ones((8, 2)), max_distance=2),
        lambda: ra.relative_bias(X, np.ones((8, 2)), bidirectional=None),
        lambda: ra.scoring("cosine", *QKV),
        lambda: ra.scoring("general", *QKV),
        lambda: ra.scoring("additive", *QKV, w_q=np.ones((3, 2))),
        lambda: ra.scoring("dot", *QKV, w=np.ones((2, 2))),
        lambda: ra.scoring("scaled", *QKV, w_v=np.ones(3)),
        lambda: ra.scoring("general", *QKV, w=np.ones((2, 2)), w_k=np.ones((3, 2))),
        lambda: ra.scoring("additive", *QKV, **ADDITIVE, w=np.ones((2, 2))),
        lambda: ra.scoring("general", *QKV, w_q=np.ones((3, 2), np.float32)),
        lambda: ra.scoring("dot", *QKV, kv_lengths=np.array([5])),
        lambda: ra.flash(X, X, X, block_k=0),
        lambda: ra.split_kv(X, X, X, splits=1.0),
        lambda: ra.varlen(*ROWS, CU[0][::-1].copy(), CU[1]),
        lambda: ra.varlen(*ROWS, *CU, window=(-1, 0)),
        lambda: ra.dropout(X, ra.Dropout(0.5, 0), offset=-1),
        lambda: ra.MultiHeadAttention.packed(np.ones((12, 4)), np.ones((4, 4)), 2, packing="rows"),
    ],
    "shape_mismatch": [
        lambda: ra.rope(X[0]),
        lambda: ra.rope(X[..., :3]),
        lambda: ra.rope(X, positions=np.array([[0, 1]])),
        lambda: ra.rope(X, cos=np.ones((3, 1)), sin=np.ones((3, 1))),
        lambda: ra.sinusoidal(X),
        lambda: ra.sinusoidal(X[0, :, :, :3]),
        lambda: ra.alibi(X[0]),
        lambda: ra.relative_bias(X, np.ones((8, 3))),
        lambda: ra.relative_bias(X, np.ones((2, 2))),
        lambda: ra.scoring("dot", QKV[0][..., :1], *QKV[1:]),
        lambda: ra.merge(X, X[..., 0], X, X),
        lambda: ra.varlen(*ROWS, CU[0], CU[1][:2]),
        lambda: ra.varlen(*ROWS, *CU, q_offset=np.array([0])),
        lambda: ra.MultiHeadAttention.packed(np.ones((13, 4)), np.ones((4, 4)), 2),
    ],
    "dtype_mismatch": [
        lambda: ra.rope(X, positions=np.array([[0, 1, 2]], np.int32)),
        lambda: ra.rope(X, cos=np.ones((3, 2), np.float32), sin=np.ones((3, 2))),
        lambda: ra.relative_bias(X, np.ones((8, 2), np.float32)),
        lambda: ra.merge(X, X[..., 0].astype(np.float32), X, X[..., 0]),
        lambda: ra.varlen(*ROWS, CU[0].astype(float), CU[1]),
        lambda: ra.scoring("general", *QKV, w=np.ones((2, 2), np.float32)),
        lambda: ra.cast(np.array([1]), "f32"),
    ],
}


@pytest.mark.parametrize(
    ("code", "number"), [(code, i) for code in BAD_CALLS for i in range(len(BAD_CALLS[code]))]
)
def test_bad_calls(code, number):
    with pytest.raises(ra.AttentionError) as caught:
        BAD_CALLS[code][number]()
    assert caught.value.code == code, caught.value
    assert re.fullmatch(r"\w+: \w+: expected .+, got .+", str(caught.value), re.DOTALL)
