"""Other ways to the same attention: tiles, splits, merged parts, packed sequences."""

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import problems

import rosetta_attention as ra

INF, NAN = np.inf, np.nan


def call(rung, problem, **more):
    return rung(problem.q, problem.k, problem.v, mask=ra.Mask(**problem.mask), **problem.options, **more)


@given(problem=problems(), data=st.data())
def test_flash_and_split_are_sdpa(problem, data):
    sizes = st.sampled_from([1, 2, 3, 64])
    if data.draw(st.booleans()):
        problem.options["dropout"] = ra.Dropout(0.3, data.draw(st.integers(0, 2**53 - 1)))
    want = call(ra.sdpa_steps, problem)
    rungs = [
        call(ra.flash, problem, block_q=data.draw(sizes), block_k=data.draw(sizes)),
        call(ra.split_kv, problem, splits=data.draw(sizes)),
    ]
    for got in rungs:
        np.testing.assert_allclose(got.output, want.output, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(got.lse, want.lse, rtol=1e-12, atol=1e-13)


@given(problem=problems(empty=False), data=st.data())
def test_nan_goes_the_same_way(problem, data):
    arrays = [problem.q, problem.k, problem.v]
    for _ in range(data.draw(st.integers(1, 3))):
        x = data.draw(st.sampled_from(arrays))
        x[tuple(data.draw(st.integers(0, size - 1)) for size in x.shape)] = NAN
    want = call(ra.sdpa_steps, problem)
    for got in (call(ra.flash, problem, block_q=2, block_k=2), call(ra.split_kv, problem, splits=3)):
        np.testing.assert_allclose(got.output, want.output, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(got.lse, want.lse, rtol=1e-12, atol=1e-13)


def test_an_infinite_score_makes_its_row_nan():
    q, k = np.array([[[[1.0], [0.5]]]]), np.array([0, 0, INF, 0.0]).reshape(1, 1, 4, 1)
    for got in (ra.flash(q, k, k, block_k=1), ra.split_kv(q, k, k)):
        assert np.isnan(got.output).all()
        assert np.isnan(got.lse).all()


def test_tiles_without_a_visible_key_are_not_read(monkeypatch):
    module = importlib.import_module("rosetta_attention.flash")
    seen = []
    products = module.products
    monkeypatch.setattr(module, "products", lambda q, k: seen.append(k.shape[2]) or products(q, k))
    x = np.ones((1, 1, 8, 2))
    ra.flash(x, x, x, mask=ra.Mask(causal=True), block_q=2, block_k=2)
    assert len(seen) == 4 + 3 + 2 + 1


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_sizes_of_tiles(size):
    x = np.ones((1, 1, 2, 2))
    for rung, name in ((ra.flash, "block_q"), (ra.flash, "block_k"), (ra.split_kv, "splits")):
        with pytest.raises(ra.InvalidConfig, match=f": {name}: expected an integer >= 1, got"):
            rung(x, x, x, **{name: size})


class TestMerge:
    def test_natural_logarithms(self):
        """LseNatural."""
        output, lse = ra.merge(*map(np.array, ([0.0], 0.0, [4.0], np.log(3))))
        np.testing.assert_allclose(output, [3])
        np.testing.assert_allclose(lse, np.log(4))

    def test_an_empty_part_changes_no_bit(self, dtype):
        a = np.array([[0.1, -0.0, 1e-40, INF, NAN]], dtype)
        lse = np.array([0.3], dtype)
        nothing = np.full_like(a, NAN), np.array([-INF], dtype)
        for got in (ra.merge(a, lse, *nothing), ra.merge(*nothing, a, lse)):
            assert got.output.tobytes() == a.tobytes()
            assert got.lse.tobytes() == lse.tobytes()
        both = ra.merge(*nothing, *nothing)
        np.testing.assert_array_equal(both.output, np.zeros_like(a))
        np.testing.assert_array_equal(both.lse, [-INF])

    @pytest.mark.parametrize("lse", [NAN, INF])
    def test_a_bad_lse_makes_its_row_nan(self, lse):
        for other in (0.0, -INF):
            got = ra.merge(np.ones((1, 2)), np.array([lse]), np.ones((1, 2)), np.array([other]))
            assert np.isnan(got.output).all()
            assert np.isnan(got.lse).all()

    def test_large_numbers_do_not_overflow(self):
        top = np.finfo(np.float32).max
        got = ra.merge(*map(np.float32, ([top], 1000.0, [top], 1000.0)))
        np.testing.assert_allclose(got.output, [top], rtol=1e-6)

    def test_refusals(self):
        x, lse = np.ones((2, 3)), np.ones(2)
        for wrong in ((x, lse[:1], x, lse), (x, lse, x[:1], lse), (np.array(1.0), lse, x, lse)):
            with pytest.raises(ra.ShapeMismatch, match="merge: "):
                ra.merge(*wrong)


class TestVarlen:
    Q, K = np.array([0, 2, 2, 5]), np.array([0, 3, 4, 6])

    def arrays(self, seed=0):
        rng = np.random.default_rng(seed)
        return rng.standard_normal((5, 4, 3)), rng.standard_normal((6, 2, 3)), rng.standard_normal((6, 2, 7))

    @pytest.mark.parametrize("offset", [None, 1, [0, 5, -1]], ids=str)
    def test_every_sequence_is_an_sdpa_of_its_own(self, offset):
        q, k, v = self.arrays()
        tensor = np.array(offset) if isinstance(offset, list) else offset
        options = {"causal": True, "window": (2, None), "softcap": 3.0, "scale": 0.5}
        got = ra.varlen(q, k, v, self.Q, self.K, q_offset=tensor, **options)
        for s in range(3):
            rows, columns = slice(*self.Q[s : s + 2]), slice(*self.K[s : s + 2])
            parts = [x.swapaxes(0, 1)[None] for x in (q[rows], k[columns], v[columns])]
            start = offset[s] if isinstance(offset, list) else offset
            mask = ra.Mask(causal=True, window=(2, None), q_offset=start)
            want = ra.sdpa_steps(*parts, mask=mask, softcap=3.0, scale=0.5)
            np.testing.assert_array_equal(got.output[rows], want.output[0].swapaxes(0, 1))
            np.testing.assert_array_equal(got.lse[rows], want.lse[0].swapaxes(0, 1))

    def test_no_sequence_reads_another(self):
        q, k, v = self.arrays()
        k[3], v[3] = NAN, NAN
        got = ra.varlen(q, k, v, self.Q, self.K)
        assert np.isfinite(got.output).all()

    def test_nothing_at_all(self):
        q, k, v = (x[:0] for x in self.arrays())
        got = ra.varlen(q, k, v, np.array([0]), np.array([0]))
        assert (got.output.shape, got.lse.shape) == ((0, 4, 7), (0, 4))

    @pytest.mark.parametrize(
        ("error", "change"),
        [
            (ra.InvalidConfig, {"cu_seqlens_q": np.array([1, 2, 2, 5])}),
            (ra.InvalidConfig, {"cu_seqlens_q": np.array([0, 3, 2, 5])}),
            (ra.InvalidConfig, {"cu_seqlens_k": np.array([0, 3, 4, 5])}),
            (ra.ShapeMismatch, {"cu_seqlens_k": np.array([0, 3, 6])}),
            (ra.ShapeMismatch, {"cu_seqlens_k": np.array([[0, 3, 4, 6]])}),
            (ra.DtypeMismatch, {"cu_seqlens_q": np.array([0.0, 2, 2, 5])}),
            (ra.ShapeMismatch, {"q_offset": np.array([0, 1])}),
            (ra.InvalidConfig, {"q_offset": 0.5}),
            (ra.InvalidConfig, {"window": (-1, 0)}),
            (ra.InvalidConfig, {"softcap": 0}),
        ],
        ids=str,
    )
    def test_refusals(self, error, change):
        q, k, v = self.arrays()
        arguments = {"cu_seqlens_q": self.Q, "cu_seqlens_k": self.K} | change
        with pytest.raises(error, match=f"varlen: {next(iter(change))}: "):
            ra.varlen(q, k, v, **arguments)
