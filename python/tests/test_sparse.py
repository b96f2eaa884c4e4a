"""Sparse patterns: predicate and list of keys say the same, and attention over them is sdpa with a mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rosetta_attention as ra

NAN = np.nan
COUNT = st.integers(0, 4)
SIZE = st.integers(1, 5)


@st.composite
def patterns(draw, q_len, kv_len):
    kind = draw(st.sampled_from(["window", "dilated", "strided", "fixed", "global", "bigbird", "blocks"]))
    if kind == "window":
        return ra.Window(draw(COUNT), draw(COUNT))
    if kind == "dilated":
        return ra.Dilated(draw(COUNT), draw(COUNT), draw(SIZE))
    if kind == "strided":
        return ra.Strided(draw(SIZE))
    if kind == "fixed":
        stride = draw(SIZE)
        return ra.Fixed(stride, draw(st.integers(0, stride)))
    if kind == "global":
        return ra.Global(draw(COUNT), draw(COUNT), draw(st.lists(st.integers(0, 20), max_size=3)))
    block = draw(SIZE)
    if kind == "bigbird":
        return ra.BigBird(block, draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(COUNT), draw(COUNT))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return ra.Blocks(block, rng.random((-(-q_len // block), -(-kv_len // block))) < 0.5)


@given(data=st.data(), q_len=st.integers(0, 17), kv_len=st.integers(0, 17), causal=st.booleans())
def test_sparse_is_sdpa_with_the_mask(data, q_len, kv_len, causal):
    pattern = data.draw(patterns(q_len, kv_len))
    mask = ra.sparse_mask(pattern, q_len, kv_len, causal=causal)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, h, t, 3)) for h, t in ((4, q_len), (2, kv_len), (2, kv_len)))
    got = ra.sparse_steps(q, k, v, pattern, causal=causal)
    want = ra.sdpa_steps(q, k, v, mask=ra.Mask(keep=mask))
    np.testing.assert_allclose(got.output, want.output, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(got.lse, want.lse, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(got.visited, mask.sum(axis=1))
    for i in range(q_len):
        keys = pattern.keys(i, q_len, kv_len)
        keys = keys[keys <= i] if causal else keys
        np.testing.assert_array_equal(keys, np.flatnonzero(mask[i]))


def shown(pattern, q_len=6, kv_len=6, **options):
    return ["".join(".#"[int(x)] for x in row) for row in ra.sparse_mask(pattern, q_len, kv_len, **options)]


@pytest.mark.parametrize(
    ("pattern", "want"),
    [
        (ra.Window(1, 0), ["#.....", "##....", ".##...", "..##..", "...##.", "....##"]),
        (ra.Dilated(1, 1, 2), ["#.#...", ".#.#..", "#.#.#.", ".#.#.#", "..#.#.", "...#.#"]),
        (ra.Strided(3), ["#.....", "##....", "###...", "####..", ".####.", "..####"]),
        (ra.Fixed(3, 1), ["#.....", "##....", "###...", "..##..", "..###.", "..####"]),
        (ra.Global(0, 0, [1]), ["##....", "######", ".##...", ".#.#..", ".#..#.", ".#...#"]),
        (ra.BigBird(2, 0, 1, 0, 0), ["######", "######", "####..", "####..", "##..##", "##..##"]),
        (
            ra.Blocks(4, np.array([[False, True], [True, False]])),
            ["....##", "....##", "....##", "....##", "####..", "####.."],
        ),
    ],
    ids=str,
)
def test_drawn_by_hand(pattern, want):
    assert shown(pattern) == want


def test_causal_adds_a_condition():
    assert shown(ra.Window(1, 1), 3, 3, causal=True) == ["#..", "##.", ".##"]


def test_bigbird_draws_without_replacement():
    """Block a draws from those that it does not see yet, by words a·random, a·random + 1, ..."""
    pattern = ra.BigBird(block=1, window=0, global_blocks=0, random=3, seed=5)
    words = ra.philox_words(5, 0, 30).tolist()
    for a in range(10):
        left = [c for c in range(10) if c != a]
        want = [a] + [left.pop(words[3 * a + n] * len(left) // 2**32) for n in range(3)]
        assert pattern.keys(a, 10, 10).tolist() == sorted(want)
    assert ra.sparse_mask(ra.BigBird(1, 0, 0, 99, 5), 4, 4).all()


def test_hidden_keys_are_never_read():
    q, k, v = (np.ones((1, 1, 4, 2)) for _ in range(3))
    k[0, 0, 3], v[0, 0, 3] = NAN, NAN
    got = ra.sparse(q, k, v, ra.Window(1, 0))
    assert np.isfinite(got[0, 0, :3]).all()
    assert np.isnan(got[0, 0, 3]).all()


@pytest.mark.parametrize(
    ("error", "argument", "pattern"),
    [
        (ra.InvalidConfig, "left", ra.Window(-1, 0)),
        (ra.InvalidConfig, "right", ra.Window(0, 0.5)),
        (ra.InvalidConfig, "dilation", ra.Dilated(1, 1, 0)),
        (ra.InvalidConfig, "stride", ra.Strided(0)),
        (ra.InvalidConfig, "summary", ra.Fixed(3, 4)),
        (ra.InvalidConfig, "tokens", ra.Global(0, 0, [-1])),
        (ra.InvalidConfig, "seed", ra.BigBird(1, 1, 1, 1, -1)),
        (ra.InvalidConfig, "block", ra.BigBird(0, 1, 1, 1, 1)),
        (ra.ShapeMismatch, "block_mask", ra.Blocks(2, np.ones((2, 1), bool))),
        (ra.DtypeMismatch, "block_mask", ra.Blocks(2, np.ones((2, 2)))),
        (ra.InvalidConfig, "pattern", "window"),
    ],
    ids=str,
)
def test_refusals(error, argument, pattern):
    x = np.ones((1, 1, 4, 2))
    with pytest.raises(error, match=f"sparse: {argument}: expected"):
        ra.sparse(x, x, x, pattern)
    with pytest.raises(error, match=f"sparse_mask: {argument}: expected"):
        ra.sparse_mask(pattern, 4, 4)
