"""Softmax and its log-sum-exp."""

import numpy as np
import pytest
from backends import LN2, Backend

INF, NAN = np.inf, np.nan


def run(lib: Backend, x, dtype="float64", sink=None):
    sink = None if sink is None else lib.array(sink, dtype)
    weights, lse = map(lib.to_numpy, lib.api.softmax_lse(lib.array(x, dtype), sink))
    assert weights.dtype == lse.dtype == dtype
    assert lse.shape == weights.shape[:-1]
    if sink is None:
        np.testing.assert_array_equal(weights, lib.to_numpy(lib.api.softmax(lib.array(x, dtype))))
    return weights, lse


def test_thirds(lib, dtype):
    weights, lse = run(lib, [0, LN2], dtype)
    np.testing.assert_allclose(weights, [1 / 3, 2 / 3], rtol=1e-6)
    np.testing.assert_allclose(lse, np.log(3), rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "weights", "lse"),
    [
        ([-INF, 0], [0, 1], 0),
        ([-INF, -INF], [0, 0], -INF),
        ([], [], -INF),
        ([5], [1], 5),
        ([INF, 0], [NAN, NAN], NAN),
        ([INF, -INF], [NAN, 0], NAN),
        ([NAN, 0, -INF], [NAN, NAN, 0], NAN),
        ([0, NAN], [NAN, NAN], NAN),
        ([-1e30, -1e30], [0.5, 0.5], -1e30),
        ([1e30, 0], [1, 0], 1e30),
    ],
    ids=str,
)
def test_special_rows(lib, dtype, x, weights, lse):
    got = run(lib, x, dtype)
    np.testing.assert_array_equal(got[0], np.array(weights, dtype))
    np.testing.assert_array_equal(got[1], np.array(lse, dtype))


def test_very_negative_scores_do_not_vanish(lib):
    """Overflow: a maximum that starts at 0 underflows to 0/0."""
    weights, _ = run(lib, [-1e5, -1e5 + LN2])
    np.testing.assert_allclose(weights, [1 / 3, 2 / 3], rtol=1e-9)


def test_large_scores_do_not_overflow(lib, dtype):
    """Overflow."""
    weights, lse = run(lib, [100, 99], dtype)
    np.testing.assert_allclose(weights @ [3, 6], 3.806824, rtol=1e-6)
    np.testing.assert_allclose(lse, 100 + np.log1p(np.exp(-1)), rtol=1e-6)


def test_rows_are_the_last_axis(lib):
    weights, lse = run(lib, [[0, 0, 0], [-INF, -INF, -INF]])
    np.testing.assert_allclose(weights, [[1 / 3] * 3, [0] * 3])
    np.testing.assert_allclose(lse, [np.log(3), -INF])


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (1,), (2, 3, 4, 5)], ids=str)
def test_shapes(lib, dtype, shape):
    weights, lse = run(lib, np.zeros(shape), dtype)
    assert weights.shape == shape
    assert lse.shape == shape[:-1]


class TestSink:
    """A logit that joins the sum and has no slot."""

    def test_takes_its_share(self, lib, dtype):
        weights, lse = run(lib, [[0, 0]], dtype, sink=[LN2])
        np.testing.assert_allclose(weights, [[0.25, 0.25]], rtol=1e-6)
        np.testing.assert_allclose(lse, [np.log(4)], rtol=1e-6)

    def test_alone_is_the_lse(self, lib, dtype):
        weights, lse = run(lib, [[-INF, -INF]], dtype, sink=[0.7])
        np.testing.assert_array_equal(weights, [[0, 0]])
        np.testing.assert_array_equal(lse, np.array([0.7], dtype))

    def test_with_an_empty_axis(self, lib):
        weights, lse = run(lib, np.zeros((3, 0)), sink=[1.5])
        assert weights.shape == (3, 0)
        np.testing.assert_array_equal(lse, [1.5, 1.5, 1.5])

    def test_of_minus_infinity_is_none(self, lib):
        for got, want in zip(run(lib, [[1, 2]], sink=[-INF]), run(lib, [[1, 2]]), strict=True):
            np.testing.assert_array_equal(got, want)

    def test_larger_than_every_score(self, lib):
        weights, lse = run(lib, [[0, 0]], sink=[1000])
        np.testing.assert_array_equal(weights, [[0, 0]])
        np.testing.assert_array_equal(lse, [1000])
