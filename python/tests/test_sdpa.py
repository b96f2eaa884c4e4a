"""Scaled dot-product attention: the rules of docs/semantics.md, and public bug reports with numbers to check by hand.

Names such as FullyMaskedRow are flags of the harness: kinds of bugs, most of them in docs/traps.md. Scores of [0, ln 2]
give weights of [1/3, 2/3], so V = [3, 6] gives 5. V = [1, 2, 4, 8] makes the mean of every subset another number.
"""

import numpy as np
import pytest
from backends import LN2, Backend, column

INF, NAN = np.inf, np.nan


def close(got, want) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=0)


def flat(x: np.ndarray) -> list[float]:
    return x.ravel().tolist()


class TestRowsWithoutAVisibleKey:
    """FullyMaskedRow, EmptyKeys: output 0, weights 0, lse -inf; never NaN, and other rows are not touched."""

    def test_mask(self, lib, dtype):
        steps = lib.by_score(
            [0, LN2], [3, 6], dtype, queries=2, mask={"keep": [[True, True], [False, False]]}
        )
        close(flat(steps.output), [5, 0])
        close(steps.weights[0, 0], [[1 / 3, 2 / 3], [0, 0]])
        close(flat(steps.lse), [np.log(3), -INF])

    def test_bias(self, lib, dtype):
        steps = lib.by_score([0, LN2], [3, 6], dtype, queries=2, bias=np.array([[0, 0], [-INF, -INF]], dtype))
        close(flat(steps.output), [5, 0])
        close(flat(steps.lse), [np.log(3), -INF])

    def test_more_queries_than_keys(self, lib):
        offset = {"causal": True, "q_offset": -2}
        close(flat(lib.by_mean([1, 3], queries=4, mask=offset).output), [0, 0, 1, 2])
        close(flat(lib.by_mean([1, 3], queries=4, mask={"causal": True}).output), [1, 2, 2, 2])

    def test_a_length_of_zero_beside_another(self, lib):
        q, k, v = np.zeros((2, 1, 1, 1)), np.zeros((2, 1, 2, 1)), np.array([1.0, 3, 1, 3]).reshape(2, 1, 2, 1)
        close(flat(lib.sdpa(q, k, v, mask={"kv_lengths": [0, 2]}).output), [0, 2])

    def test_scores_of_minus_infinity(self, lib):
        steps = lib.by_score([-INF, -INF], [3, 6])
        assert flat(steps.output) == [0]
        assert flat(steps.lse) == [-INF]


@pytest.mark.parametrize("sizes", [(2, 2, 0), (2, 0, 3), (0, 2, 3), (2, 0, 0), (0, 0, 0)], ids=str)
def test_sizes_of_zero(lib, dtype, sizes):
    """EmptyKeys: an empty result has the right shape."""
    B, Tq, Tk = sizes
    q, k, v = np.zeros((B, 4, Tq, 3), dtype), np.zeros((B, 2, Tk, 3), dtype), np.zeros((B, 2, Tk, 5), dtype)
    mask = {"causal": True, "window": (1, 1), "kv_lengths": [0] * B, "q_offset": [0] * B, "keep": [[[True]]]}
    for conditions in ({}, mask):
        steps = lib.sdpa(q, k, v, mask=conditions, bias=np.zeros(1, dtype), softcap=2.0)
        assert steps.output.shape == (B, 4, Tq, 5)
        assert steps.scores.shape == steps.weights.shape == (B, 4, Tq, Tk)
        assert (steps.output == 0).all()
        assert (steps.lse == -INF).all()
        sinks = np.arange(4).astype(dtype)
        steps = lib.sdpa(q, k, v, mask=conditions, sinks=sinks)
        np.testing.assert_array_equal(steps.lse, np.broadcast_to(sinks[:, None], (B, 4, Tq)))


def test_a_value_size_of_zero(lib):
    assert lib.sdpa(np.ones((1, 1, 2, 3)), np.ones((1, 1, 2, 3)), np.ones((1, 1, 2, 0))).output.shape == (
        1,
        1,
        2,
        0,
    )


class TestCausal:
    def test_top_left_and_bottom_right(self, lib):
        """CausalAlignment: the offset says which one it is."""
        close(flat(lib.by_mean([1, 2, 4, 8], queries=2, mask={"causal": True}).output), [1, 1.5])
        mask = {"causal": True, "q_offset": 2}
        close(flat(lib.by_mean([1, 2, 4, 8], queries=2, mask=mask).output), [7 / 3, 3.75])

    def test_an_offset_for_each_row(self, lib):
        q, v = np.zeros((2, 1, 1, 1)), np.tile(column([1, 2, 4, 8]), (2, 1, 1, 1))
        close(flat(lib.sdpa(q, v, v, mask={"causal": True, "q_offset": [1, 3]}).output), [1.5, 3.75])

    @pytest.mark.parametrize(
        "other", [{}, {"keep": [[True]]}, {"window": (None, None)}, {"kv_lengths": [3]}], ids=str
    )
    def test_no_other_option_switches_it_off(self, lib, other):
        """MaskComposition; the short call and the one with weights are compared in every test."""
        close(flat(lib.by_mean([1, 2, 4], queries=3, mask={"causal": True} | other).output), [1, 1.5, 7 / 3])


class TestWindow:
    def test_width_two_counting_the_query(self, lib):
        """WindowOffByOne: left = W - 1."""
        mask = {"causal": True, "window": (1, 0)}
        close(flat(lib.by_mean([1, 2, 4, 8], queries=4, mask=mask).output), [1, 1.5, 3, 6])

    def test_without_a_causal_flag(self, lib):
        """MaskComposition."""
        close(flat(lib.by_mean([1, 2, 4], queries=3, mask={"window": (1, 0)}).output), [1, 1.5, 3])

    def test_itself_only(self, lib):
        close(flat(lib.by_mean([1, 2, 4, 8], queries=4, mask={"window": (0, 0)}).output), [1, 2, 4, 8])

    def test_wider_than_the_keys(self, lib):
        mask = {"causal": True, "window": (9, 9)}
        close(flat(lib.by_mean([1, 2, 4], queries=3, mask=mask).output), [1, 1.5, 7 / 3])

    def test_to_the_right(self, lib):
        close(flat(lib.by_mean([1, 2, 4], queries=3, mask={"window": (0, 1)}).output), [1.5, 3, 4])


class TestMaskAndBias:
    def test_true_attends(self, lib):
        """MaskPolarity."""
        mask = {"keep": [[True, False], [True, True]]}
        close(flat(lib.by_mean([1, 3], queries=2, mask=mask).output), [1, 2])

    def test_left_padding(self, lib):
        """LeftPadding."""
        close(flat(lib.by_mean([100, 1, 3], mask={"keep": [False, True, True]}).output), [2])

    def test_bias_broadcasts_over_queries(self, lib):
        close(flat(lib.by_mean([1, 2, 4], queries=2, bias=np.array([-1, -0.5, 0])).output), [2.82663664] * 2)

    def test_a_constant_in_a_row_changes_nothing(self, lib):
        close(lib.by_score([0, LN2], [3, 6], bias=np.array([[7.0]])).output, [[[[5]]]])

    def test_a_finite_sentinel_is_only_a_number(self, lib):
        close(flat(lib.by_mean([1, 3], bias=np.array([-1e30, -1e30])).output), [2])

    def test_minus_infinity_hides_even_nan(self, lib, dtype):
        steps = lib.by_score([0, NAN], [3, NAN], dtype, bias=np.array([0, -INF], dtype))
        assert flat(steps.output) == [3]
        assert flat(steps.weights) == [1, 0]
        assert flat(steps.lse) == [0]

    def test_both_intersect(self, lib):
        steps = lib.by_mean([1, 2, 4], mask={"keep": [True, True, False]}, bias=np.array([-INF, 0, 0]))
        assert flat(steps.output) == [2]

    def test_every_rank_is_aligned_to_the_right(self, lib):
        q, k, v = np.zeros((2, 2, 1, 1)), np.zeros((2, 2, 2, 1)), np.tile(column([1, 3]), (2, 2, 1, 1))
        keep = np.array([[[True, False]], [[False, True]]])  # (Hq, Tq, Tk): by heads, not by rows
        close(flat(lib.sdpa(q, k, v, mask={"keep": keep}).output), [1, 3, 1, 3])
        bias = np.where(keep, 0, -INF)
        close(flat(lib.sdpa(q, k, v, bias=bias).output), [1, 3, 1, 3])
        close(flat(lib.sdpa(q, k, v, bias=bias[:, None]).output), [1, 1, 3, 3])
        close(flat(lib.sdpa(q, k, v, bias=np.array(5.0)).output), [2] * 4)


class TestSoftcap:
    def test_comes_before_the_mask(self, lib, dtype):
        """SoftcapOrder: behind it, tanh would turn -inf into -cap."""
        steps = lib.by_score([1, 3], [5, 100], dtype, softcap=2.0, mask={"keep": [True, False]})
        assert flat(steps.output) == [5]
        assert flat(steps.weights) == [1, 0]

    def test_comes_before_the_bias(self, lib):
        steps = lib.by_score([1, 3], [5, 100], softcap=2.0, bias=np.array([0, -INF]))
        assert flat(steps.output) == [5]
        close(flat(steps.capped), flat(2 * np.tanh([0.5, 1.5])))

    def test_comes_after_the_scale(self, lib):
        """SoftcapOrder."""
        steps = lib.by_score([8, 0], [3, 6], scale=0.5, softcap=2.0)
        close(flat(steps.output), [3.380898])
        close(flat(steps.capped), [1.928055, 0])
        close(flat(lib.by_score([8, 0], [3, 6], scale=0.5).output), [3.053959])

    def test_makes_an_infinite_score_finite(self, lib):
        steps = lib.by_score([INF, 2], [3, 6], softcap=2.0)
        assert np.isfinite(steps.output).all()
        close(flat(steps.capped), [2, 2 * np.tanh(1)])


class TestScale:
    """AbsentIsNotZero: absent is 1/sqrt(D), and an explicit 0 is 0."""

    Q = np.ones((1, 1, 1, 4))
    K = np.stack([np.zeros(4), np.full(4, LN2 / 2)]).reshape(1, 1, 2, 4)
    V = np.array([[3.0, 0, 1], [6, 3, 1]]).reshape(1, 1, 2, 3)

    @pytest.mark.parametrize(
        ("scale", "want"),
        [
            (None, [5, 2, 1]),
            (0, [4.5, 1.5, 1]),
            (0.0, [4.5, 1.5, 1]),
            (1, [5.4, 2.4, 1]),
            (0.25, [4.757359, 1.757359, 1]),
            (-0.5, [4, 1, 1]),
        ],
    )
    def test_value(self, lib, scale, want):
        np.testing.assert_allclose(
            flat(lib.sdpa(self.Q, self.K, self.V, scale=scale).output), want, rtol=1e-6
        )

    def test_numpy_scalars_do_not_widen(self, lib):
        """A float32 times a float64 scalar of NumPy is float64; `lib.sdpa` checks every dtype."""
        q, k, v = (x.astype(np.float32) for x in (self.Q, self.K, self.V))
        steps = lib.sdpa(
            q, k, v, scale=1 / np.sqrt(np.int64(4)), softcap=np.float64(50), bias=np.zeros(1, np.float32)
        )
        assert steps.output.dtype == np.float32


class TestHeads:
    @pytest.mark.parametrize(
        ("values", "want"),
        [
            ([10, 20], [10, 10, 10, 20, 20, 20]),
            ([10, 20, 30], [10, 10, 20, 20, 30, 30]),
            ([10], [10] * 6),
            ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
        ],
    )
    def test_consecutive_query_heads_share(self, lib, dtype, values, want):
        """GqaTile."""
        v = np.array(values, dtype).reshape(1, -1, 1, 1)
        assert flat(lib.sdpa(np.zeros((1, 6, 1, 1), dtype), np.zeros_like(v), v).output) == want

    def test_no_heads(self, lib):
        empty = np.zeros((2, 0, 3, 4))
        assert lib.sdpa(empty, empty, empty).weights.shape == (2, 0, 3, 3)


@pytest.mark.parametrize("D", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65])
def test_the_last_channel_counts(lib, dtype, D):
    """VectorTail: it holds what matters, with NaN right behind every row in memory."""
    block = np.full((2, D + 1), NAN, dtype)
    block[:, :D], block[0, D - 1] = 1, 10
    k = block[:, :D].reshape(1, 1, 2, D)
    steps = lib.sdpa(np.ones((1, 1, 1, D), dtype), k, k, scale=1.0)
    assert flat(steps.scores) == [D + 9, D]


class TestNonFinite:
    def test_a_visible_infinite_score_makes_the_row_nan(self, lib, dtype):
        """InfiniteScore."""
        steps = lib.by_score([INF, 0, 5], [1, 2, 4], dtype, mask={"keep": [True, True, False]})
        np.testing.assert_array_equal(flat(steps.weights), [NAN, NAN, 0])
        np.testing.assert_array_equal(flat(steps.output), [NAN])
        np.testing.assert_array_equal(flat(steps.lse), [NAN])

    def test_a_large_dot_product_that_fits_when_scaled(self, lib):
        """Overflow: q·k is 5.8e38, beyond float32."""
        q = np.full((1, 1, 1, 64), 3e18, np.float32)
        k = np.concatenate([q, np.zeros_like(q)], axis=2)
        assert flat(lib.sdpa(q, k, column([7, 9], "float32")).output) == [7]

    def test_very_negative_and_very_large_scores(self, lib):
        """Overflow."""
        np.testing.assert_allclose(lib.by_score([-1e5, -1e5 + LN2], [3, 6]).output, [[[[5]]]], rtol=1e-9)
        np.testing.assert_allclose(
            lib.by_score([100, 99], [3, 6], "float32").output, [[[[3.806824]]]], rtol=1e-6
        )

    def test_poison_in_hidden_slots_changes_nothing(self, lib, dtype):
        clean = lib.by_score([0, LN2, 1], [3, 6, 9], dtype, mask={"kv_lengths": [2]})
        for poison in (NAN, INF, -INF):
            steps = lib.by_score([0, LN2, poison], [3, 6, poison], dtype, mask={"kv_lengths": [2]})
            for name in ("output", "weights", "lse"):
                np.testing.assert_array_equal(getattr(steps, name), getattr(clean, name))

    def test_poison_reaches_only_those_who_see_it(self, lib):
        steps = lib.by_mean([1, NAN, 4], queries=3, mask={"window": (0, 0)})
        np.testing.assert_array_equal(flat(steps.output), [1, NAN, 4])
        steps = lib.by_mean([1, 3, INF], queries=3, mask={"causal": True})
        np.testing.assert_array_equal(flat(steps.output), [1, 2, INF])

    def test_infinite_values_add_up(self, lib):
        np.testing.assert_array_equal(flat(lib.by_mean([INF, 1]).output), [INF])
        np.testing.assert_array_equal(flat(lib.by_mean([INF, -INF]).output), [NAN])

    def test_a_visible_weight_of_zero_times_infinity_is_nan(self, lib):
        steps = lib.by_score([0, -2000], [1, INF])
        assert flat(steps.weights) == [1, 0]
        np.testing.assert_array_equal(flat(steps.output), [NAN])

    def test_only_the_channels_that_are_not_finite(self, lib):
        v = np.array([[1.0, 2], [3, INF]]).reshape(1, 1, 2, 2)
        np.testing.assert_array_equal(
            flat(lib.sdpa(np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), v).output), [2, INF]
        )

    @pytest.mark.parametrize("where", ["k", "bias"])
    def test_visible_nan_makes_the_row_nan(self, lib, where):
        keep = {"keep": [True, True, False]}
        if where == "k":
            steps = lib.by_score([NAN, 1, 2], [1, 2, 4], mask=keep)
        else:
            steps = lib.by_mean([1, 2, 4], mask=keep, bias=np.array([0, NAN, 0]))
        np.testing.assert_array_equal(flat(steps.weights), [NAN, NAN, 0])
        np.testing.assert_array_equal(flat(steps.output), [NAN])
        np.testing.assert_array_equal(flat(steps.lse), [NAN])

    def test_subnormal_values_survive(self, lib):
        """Subnormal."""
        tiny = np.float32(1e-40)
        steps = lib.by_mean([tiny, tiny], "float32")
        assert steps.output.item() == tiny


class TestSinks:
    def test_share_of_the_denominator(self, lib, dtype):
        q, k, v = np.zeros((1, 2, 1, 1), dtype), np.zeros((1, 1, 2, 1), dtype), column([2, 6], dtype)
        steps = lib.sdpa(q, k, v, sinks=np.array([LN2, -INF], dtype))
        close(flat(steps.output), [2, 4])
        close(flat(steps.weights), [0.25, 0.25, 0.5, 0.5])
        close(flat(steps.lse), [np.log(4), np.log(2)])

    def test_without_a_visible_key(self, lib, dtype):
        steps = lib.by_mean([1, 2], dtype, sinks=np.array([0.7], dtype), mask={"kv_lengths": [0]})
        assert flat(steps.output) == [0]
        assert flat(steps.weights) == [0, 0]
        assert steps.lse.item() == np.array(0.7, dtype)


def test_lse_is_a_natural_logarithm(lib):
    """LseNatural: with it two partial results merge into the whole."""
    a, b = lib.by_score([0], [0]), lib.by_score([np.log(3)], [4])
    lse = np.logaddexp(a.lse, b.lse)
    merged = np.exp(a.lse - lse)[..., None] * a.output + np.exp(b.lse - lse)[..., None] * b.output
    close(flat(merged), [3])
    close(flat(lse), [np.log(4)])


def test_steps_are_before_the_mask(lib):
    steps = lib.by_score([1, 2], [3, 6], softcap=4.0, bias=np.array([0.5, -1]), mask={"keep": [False, False]})
    close(flat(steps.scores), [1, 2])
    close(flat(steps.capped), flat(4 * np.tanh([0.25, 0.5])))
    close(flat(steps.biased), flat(4 * np.tanh([0.25, 0.5]) + [0.5, -1]))


def test_nothing_is_random(lib):
    """Dropout is off unless the call asks for it."""
    outputs = {lib.by_score([0, LN2], [3, 6]).output.item() for _ in range(5)}
    assert len(outputs) == 1


def test_inputs_are_left_as_they_were(lib: Backend):
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((1, 2, 3, 4)) for _ in range(3)]
    inputs[2][0, 0, 1] = NAN
    copies = [x.copy() for x in inputs]
    lib.sdpa(*inputs, mask={"causal": True}, softcap=1.0, bias=np.zeros((3, 3)), sinks=np.zeros(2))
    for x, copy in zip(inputs, copies, strict=True):
        np.testing.assert_array_equal(x, copy)
