"""`blocked` is `sdpa` in other memory: every option, size and layout, hidden values, and what it allocates."""

import importlib
import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import Problem, layouts, problems
from values import normal

import rosetta_attention as ra

INF, NAN = np.inf, np.nan
MODULE = importlib.import_module("rosetta_attention.blocked")
# Sizes with which even a tiny problem has many blocks, few rows, many parts; and those that are in force.
SIZES = {
    "SCORES": [8, 64, 512, MODULE.SCORES],
    "DIAGONAL": [1, 3, MODULE.DIAGONAL],
    "LEAST_ROWS": [1, 2, MODULE.LEAST_ROWS],
    "FEW_ROWS": [1, MODULE.FEW_ROWS],
    "SMALL": [1, 32, MODULE.SMALL],
    "ROW_WISE": [1, 4, MODULE.ROW_WISE],
    "SMALL_ROW": [0, 16, MODULE.SMALL_ROW],
}


def solve(rung, problem: Problem):
    return rung(problem.q, problem.k, problem.v, mask=ra.Mask(**problem.mask), **problem.options)


def largest(x: np.ndarray | None) -> float:
    """The largest finite magnitude."""
    return 0.0 if x is None else float(np.max(np.abs(x), where=np.isfinite(x), initial=0))


def bounds(problem: Problem, lse: np.ndarray, eps: float) -> tuple[float, float]:
    """How far two answers in this precision may be apart, in the output and in the lse.

    A score of magnitude S is a sum of D products (D roundings) of which each has four more; softcap rounds three
    times and its slope is at most 1; bias, and the subtraction of the maximum, round once, at the size of what they
    add up. A weight is a quotient of exponentials (4 units each), and both carry the error of their scores; a sum
    over keys has Tk roundings. Each answer may be so far off, so two of them twice as far.
    """
    D, Tk = problem.q.shape[3], problem.k.shape[2]
    scale = problem.options.get("scale")
    scale = D**-0.5 if scale is None else abs(scale)
    S = D * scale * largest(problem.q) * largest(problem.k)
    M = S + largest(problem.options.get("bias")) + largest(problem.options.get("sinks"))
    score = eps * ((D + 4 + 3) * S + 2 * 2 * M)
    total = score + eps * (Tk + 4 + 2)
    weight = score + 4 * eps + total
    output = (weight + eps * (Tk + 2)) * largest(problem.v)
    return 2 * output, 2 * (total + eps * (largest(lse) + M + 2))


def assert_same(got, want, problem: Problem, eps: float = np.finfo(float).eps):
    output, lse = bounds(problem, want.lse, eps)
    np.testing.assert_allclose(got.output, want.output, rtol=0, atol=output)
    np.testing.assert_allclose(got.lse, want.lse, rtol=0, atol=lse)


@pytest.fixture
def sizes(monkeypatch):
    def choose(data: st.DataObject) -> None:
        for name, choices in SIZES.items():
            monkeypatch.setattr(MODULE, name, data.draw(st.sampled_from(choices), name))

    return choose


@pytest.mark.parametrize("poisoned", [False, True])
def test_it_is_sdpa_in_blocks_of_any_size(sizes, poisoned):
    @given(problem=problems(), data=st.data())
    def check(problem, data):
        sizes(data)
        for _ in range(data.draw(st.integers(1, 3)) if poisoned else 0):
            x = data.draw(st.sampled_from([problem.q, problem.k, problem.v]))
            if x.size:
                # Not infinity in q and k: inf - inf in a sum comes or goes with the order.
                values = [NAN, INF, -INF] if x is problem.v else [NAN]
                x.flat[data.draw(st.integers(0, x.size - 1))] = data.draw(st.sampled_from(values))
        assert_same(solve(ra.blocked, problem), solve(ra.sdpa_steps, problem), problem)

    check()


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "continued": {"causal": True, "q_offset": np.array([400, -3])},
    "window": {"window": (40, 10), "q_offset": 100},
    "stands": {"window": (40, 10), "kv_positions": np.arange(1400).reshape(2, 700)[:, ::-1] - 600},
    "lengths": {"kv_lengths": np.array([257, 0])},
    "keep": {"keep": normal(300, 700) < 1},
    "heads": {"keep": normal(4, 1, 700) < 1, "causal": True, "q_offset": 400},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_sizes_that_take_many_blocks(name, dtype):
    """Against float64, as the sizes that are in force would need large sums to be told from a wrong block."""
    q, k, v = normal(2, 4, 300, 24), normal(2, 2, 700, 24, seed=1), normal(2, 2, 700, 5, seed=2)
    options = {"bias": normal(4, 300, 1, seed=3), "softcap": 20.0, "sinks": normal(4, seed=4)}
    problem = Problem(q, k, v, OPTIONS[name], options if name in ("window", "heads") else {}).cast(dtype)
    want = solve(ra.sdpa_steps, problem.cast("float64"))
    assert_same(solve(ra.blocked, problem), want, problem, np.finfo(dtype).eps)


def test_views_of_any_strides():
    problem = Problem(normal(2, 4, 5, 3), normal(2, 2, 7, 3, seed=1), normal(2, 2, 7, 3, seed=2))
    want = solve(ra.sdpa_steps, problem)
    for views in product(*(layouts(x).values() for x in (problem.q, problem.k, problem.v))):
        assert_same(solve(ra.blocked, Problem(*views)), want, problem)


@pytest.mark.parametrize(
    "sizes", [(0, 2, 2, 3, 4), (2, 0, 2, 3, 4), (2, 0, 0, 3, 4), (2, 4, 2, 0, 4), (2, 4, 2, 3, 0)]
)
def test_sizes_of_0(sizes):
    B, Hq, Hkv, Tq, Tk = sizes
    problem = Problem(normal(B, Hq, Tq, 2), normal(B, Hkv, Tk, 2), normal(B, Hkv, Tk, 3))
    got, want = (solve(rung, problem) for rung in (ra.blocked, ra.sdpa_steps))
    np.testing.assert_array_equal(got.output, want.output)
    np.testing.assert_array_equal(got.lse, want.lse)


def test_half_types_are_rounded_once():
    q, k, v = (normal(1, 2, 9, 8, seed=seed).astype(np.float16) for seed in range(3))
    got = ra.blocked(q, k, v)
    wide = ra.blocked(*(x.astype(np.float32) for x in (q, k, v)))
    assert (got.output.dtype, got.lse.dtype) == (np.float16, np.float32)
    np.testing.assert_array_equal(got.output, wide.output.astype(np.float16))
    np.testing.assert_array_equal(got.lse, wide.lse)


class TestHidden:
    """What is hidden is not in the result; what no query of a block can see is not even read."""

    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    def test_keys_beyond_the_lengths_change_no_bit(self, value, dtype):
        q, k, v = (normal(2, 2, 9, 4, seed=seed).astype(dtype) for seed in range(3))
        mask = ra.Mask(kv_lengths=np.array([5, 5]))
        want = ra.blocked(q, k, v, mask=mask)
        k[:, :, 5:], v[:, :, 5:] = value, value
        got = ra.blocked(q, k, v, mask=mask)
        np.testing.assert_array_equal(got.output, want.output)
        np.testing.assert_array_equal(got.lse, want.lse)

    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    @pytest.mark.parametrize("hide", ["keep", "bias", "causal"])
    def test_poison_beside_visible_keys(self, hide, value):
        q, k, v = (normal(1, 2, 6, 4, seed=seed) for seed in range(3))
        seen = np.arange(6) <= (np.arange(6)[:, None] if hide == "causal" else 3)
        mask = {"keep": seen} if hide == "keep" else {"causal": hide == "causal"}
        problem = Problem(q, k, v, mask, {"bias": np.where(seen, 0, -INF)} if hide == "bias" else {})
        want = solve(ra.blocked, problem)
        k[:, :, 4:], v[:, :, 4:] = value, value
        rows = slice(0, 4) if hide == "causal" else slice(None)
        assert np.isfinite(want.output).all()
        got = solve(ra.blocked, problem)
        output, _ = bounds(problem, want.lse, np.finfo(float).eps)
        np.testing.assert_allclose(got.output[:, :, rows], want.output[:, :, rows], rtol=0, atol=output)
        assert np.isfinite(got.lse[:, :, rows]).all()

    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    def test_a_score_of_minus_infinity_hides_its_value(self, value):
        q, k, v = (np.abs(normal(1, 2, 6, 4, seed=seed)) for seed in range(3))
        k[:, :, 4], v[:, :, 4] = -INF, value
        problem = Problem(q, k, v)
        want = solve(ra.sdpa_steps, problem)
        assert np.isfinite(want.output).all()
        assert_same(solve(ra.blocked, problem), want, problem)

    @pytest.mark.parametrize("keep", [np.zeros(6, bool), np.arange(6) < 3], ids=["none", "some"])
    def test_a_sink_of_nan(self, keep):
        """It makes a row NaN, but not one that sees no key, for there is nothing to add up."""
        q, k, v = (normal(1, 2, 6, 4, seed=seed) for seed in range(3))
        problem = Problem(q, k, v, {"keep": keep}, {"sinks": np.array([NAN, 0.5])})
        assert_same(solve(ra.blocked, problem), solve(ra.sdpa_steps, problem), problem)

    def test_empty_rows_need_no_second_answer(self, monkeypatch):
        monkeypatch.setattr(MODULE, "_naive_output", None)
        x = normal(1, 1, 8, 2)
        got = ra.blocked(x, x, x, mask=ra.Mask(causal=True, q_offset=-3))
        assert (got.output[:, :, :3] == 0).all()
        assert (got.lse[:, :, :3] == -INF).all()
        assert np.isfinite(got.lse[:, :, 3:]).all()

    @pytest.mark.parametrize(
        ("mask", "read"),
        [
            ({"causal": True}, [2, 4, 6, 8]),
            ({"window": (1, 0)}, [2, 3, 3, 3]),
            ({"window": (1, 0), "q_offset": 3}, [3, 3, 2, 0]),
            ({"kv_lengths": np.array([3])}, [3, 3, 3, 3]),
            ({"causal": True, "q_offset": -3}, [0, 1, 3, 5]),
        ],
        ids=str,
    )
    def test_only_keys_in_range_are_read(self, monkeypatch, mask, read):
        seen = []
        scores = MODULE._scores
        monkeypatch.setattr(
            MODULE,
            "_scores",
            lambda rows, keys, memory: seen.append(keys.shape[2]) or scores(rows, keys, memory),
        )
        for name, size in {"SCORES": 1, "LEAST_ROWS": 2, "DIAGONAL": 2}.items():
            monkeypatch.setattr(MODULE, name, size)
        x = normal(1, 1, 8, 2)
        ra.blocked(x, x, x, mask=ra.Mask(**mask))
        assert seen == read


def test_a_sum_that_overflows_before_its_division():
    large = np.float32(3e38)
    q, v = np.zeros((1, 1, 2, 4), np.float32), np.full((1, 1, 9, 3), large)
    got = ra.blocked(q, np.zeros((1, 1, 9, 4), np.float32), v)
    # A weight has three roundings (exponential, sum, quotient), a sum of nine products as many again, twice.
    np.testing.assert_allclose(got.output, large, rtol=(3 + 2 * 9) * np.finfo(np.float32).eps)


def peak(call) -> int:
    """Bytes beyond what was there before, at most."""
    tracemalloc.start()
    call()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": (100, 100)}], ids=str)
def test_no_table_of_all_scores(mask):
    T, D = 2048, 16
    q, k, v = (normal(1, 1, T, D, seed=seed).astype(np.float32) for seed in range(3))
    calls = [lambda rung=rung: rung(q, k, v, mask=ra.Mask(**mask)) for rung in (ra.sdpa, ra.blocked)]
    naive, blocked = map(peak, calls)
    # The scores of a block; a mask of it, of a byte a score, and positions of eight, at most twice each; q and output.
    most = MODULE.SCORES * (1 + (0.25 + 2) * 2 * bool(mask)) + 4 * q.nbytes
    assert blocked < most < T * T * 4 < naive


def test_refusals():
    q, k, v = (normal(1, 2, 3, 4, seed=seed) for seed in range(3))
    with pytest.raises(ra.Unsupported) as caught:
        ra.blocked(q, k, v, dropout=ra.Dropout(0.5, 1))
    assert caught.value.feature == "dropout"
    with pytest.raises(ra.ShapeMismatch, match="blocked: k: "):
        ra.blocked(q, k[..., :3], v, dropout=ra.Dropout(0.5, 1))
    with pytest.raises(ra.InvalidConfig, match="blocked: p: "):
        ra.blocked(q, k, v, dropout=ra.Dropout(2, 1))


def test_the_port_has_it(port):
    sdpa = port.port.library.ops()["sdpa"]
    assert sdpa["variants"] == ["naive", "flash", "split", "blocked"]
    assert "blocked" not in sdpa["complete"]
