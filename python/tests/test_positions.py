"""Positions: rotations and their scalings, sinusoidal tables, ALiBi, T5's buckets."""

import math

import numpy as np
import pytest

import rosetta_attention as ra

NAN = np.nan


def heads(values, dtype="float64"):
    """(1, 1, 1, D)."""
    return np.array(values, dtype).reshape(1, 1, 1, -1)


def frequencies(scaling=None, *, length=4, R=8, base=10000.0):
    """Angles at position 1 of a row that ends at length - 1: cos and sin without the attention factor."""
    steps = ra.rope_steps(
        np.zeros((1, 1, 2, R)), ra.Rope(base=base, scaling=scaling), positions=np.array([[1, length - 1]])
    )
    return np.arctan2(steps.sin, steps.cos)[0, 0], np.hypot(steps.sin, steps.cos)[0, 0, 0]


class TestRope:
    def test_the_two_pairings(self):
        """RopePairing."""
        x = heads([1, 2, 3, 4])
        half = ra.rope(x, ra.Rope(offset=1)).ravel()
        np.testing.assert_allclose(half, [-1.984111, 1.959901, 2.462378, 4.019800], atol=1e-6)
        turned = ra.rope(x, ra.Rope(offset=1, interleaved=True)).ravel()
        np.testing.assert_allclose(turned, [-1.142640, 1.922076, 2.959851, 4.029800], atol=1e-6)

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_scores_depend_on_the_distance_alone(self, interleaved):
        rng = np.random.default_rng(0)
        q, k = rng.standard_normal((2, 1, 1, 1, 6))
        turn = lambda x, p: ra.rope(x, ra.Rope(offset=p, interleaved=interleaved)).ravel()  # noqa: E731
        np.testing.assert_allclose(turn(q, 9) @ turn(k, 5), turn(q, 104) @ turn(k, 100), rtol=1e-10)

    def test_angles_are_made_in_float64(self):
        """AnglePrecision."""
        steps = ra.rope_steps(np.zeros((1, 1, 1, 32), np.float32), positions=np.array([[1857]]))
        assert steps.cos.dtype == np.float32
        assert steps.cos[0, 0, 1] == np.float32(math.cos(1857 * 10000 ** (-1 / 16)))

    def test_only_rotary_dim_channels_turn(self):
        x = np.arange(1.0, 7).reshape(1, 1, 1, 6)
        got = ra.rope(x, ra.Rope(rotary_dim=4, offset=3))
        np.testing.assert_array_equal(got[..., :4], ra.rope(x[..., :4], ra.Rope(offset=3)))
        np.testing.assert_array_equal(got[..., 4:], x[..., 4:])

    def test_positions_of_each_row(self):
        x = np.random.default_rng(1).standard_normal((2, 3, 2, 4))
        got = ra.rope(x, positions=np.array([[5, 2], [0, 7]]))
        for b, t, p in ((0, 0, 5), (0, 1, 2), (1, 0, 0), (1, 1, 7)):
            want = ra.rope(x[b : b + 1, :, t : t + 1], ra.Rope(offset=p))
            np.testing.assert_array_equal(got[b : b + 1, :, t : t + 1], want)

    def test_tables_take_the_place_of_base(self):
        x = np.random.default_rng(2).standard_normal((1, 2, 3, 4))
        p = np.arange(8)[:, None] * 10000 ** (-np.arange(2) / 2)
        positions = np.array([[7, 0, 3]])
        got = ra.rope_steps(x, positions=positions, cos=np.cos(p), sin=np.sin(p))
        np.testing.assert_allclose(got.output, ra.rope(x, positions=positions), rtol=1e-12)
        np.testing.assert_array_equal(got.cos[0], np.cos(p)[[7, 0, 3]])

    def test_nan_stays_in_its_pair(self):
        got = ra.rope(heads([NAN, 1, 1, 1]), ra.Rope(offset=2)).ravel()
        assert np.isnan(got).tolist() == [True, False, True, False]

    @pytest.mark.parametrize("shape", [(0, 1, 2, 4), (1, 0, 2, 4), (1, 1, 0, 4)], ids=str)
    def test_sizes_of_zero(self, shape):
        for scaling in (None, ra.DynamicScaling(2, 4)):
            assert ra.rope(np.zeros(shape), ra.Rope(scaling=scaling)).shape == shape

    @pytest.mark.parametrize(
        ("error", "argument", "options", "arrays"),
        [
            (ra.ShapeMismatch, "x", {}, {"x": np.zeros((1, 1, 1, 3))}),
            (ra.ShapeMismatch, "x", {}, {"x": np.zeros((1, 1, 4))}),
            (ra.InvalidConfig, "rotary_dim", {"rotary_dim": 3}, {}),
            (ra.InvalidConfig, "rotary_dim", {"rotary_dim": 6}, {}),
            (ra.InvalidConfig, "base", {"base": 0}, {}),
            (ra.InvalidConfig, "interleaved", {"interleaved": 1}, {}),
            (ra.InvalidConfig, "offset", {"offset": 1}, {"positions": np.array([[0]])}),
            (ra.DtypeMismatch, "positions", {}, {"positions": np.array([[0.0]])}),
            (ra.ShapeMismatch, "positions", {}, {"positions": np.array([[0, 1]])}),
            (ra.InvalidConfig, "cos", {}, {"cos": np.zeros((1, 2))}),
            (
                ra.InvalidConfig,
                "positions",
                {"offset": 1},
                {"cos": np.zeros((1, 2)), "sin": np.zeros((1, 2))},
            ),
            (ra.InvalidConfig, "base", {"base": 5.0}, {"cos": np.zeros((1, 2)), "sin": np.zeros((1, 2))}),
            (ra.ShapeMismatch, "cos", {}, {"cos": np.zeros((1, 3)), "sin": np.zeros((1, 3))}),
            (ra.InvalidConfig, "factor", {"scaling": ra.LinearScaling(0)}, {}),
            (ra.InvalidConfig, "original_length", {"scaling": ra.DynamicScaling(2, 0)}, {}),
            (ra.InvalidConfig, "short_factor", {"scaling": ra.LongRopeScaling([1.0], [1.0, 1.0], 4)}, {}),
            (ra.InvalidConfig, "high_freq_factor", {"scaling": ra.Llama3Scaling(2, 8, 4, 4)}, {}),
            (ra.InvalidConfig, "base", {"base": 1, "scaling": ra.YarnScaling(2, 8)}, {}),
        ],
        ids=str,
    )
    def test_refusals(self, error, argument, options, arrays):
        arrays = {"x": np.zeros((1, 1, 1, 4))} | arrays
        with pytest.raises(error, match=f"rope: {argument}: expected"):
            ra.rope(arrays.pop("x"), ra.Rope(**options), **arrays)


class TestScaling:
    PLAIN = 10000.0 ** (-np.arange(4) / 4)

    def test_linear(self):
        np.testing.assert_allclose(frequencies(ra.LinearScaling(4))[0], self.PLAIN / 4, rtol=1e-12)

    def test_dynamic_changes_nothing_up_to_the_original_length(self):
        short, _ = frequencies(ra.DynamicScaling(2, 16), length=16)
        np.testing.assert_allclose(short, self.PLAIN, rtol=1e-12)
        long, _ = frequencies(ra.DynamicScaling(2, 16), length=32)
        base = 10000 * 3 ** (8 / 6)  # s L / L0 - (s - 1) = 3
        np.testing.assert_allclose(long, base ** (-np.arange(4) / 4), rtol=1e-12)
        np.testing.assert_allclose(long[-1] * 3, self.PLAIN[-1], rtol=1e-12)  # the slowest pair just fits

    def test_rows_of_a_batch_have_lengths_of_their_own(self):
        x = np.random.default_rng(0).standard_normal((2, 1, 2, 8))
        options = ra.Rope(scaling=ra.DynamicScaling(2, 16))
        positions = np.array([[1, 15], [1, 31]])
        both = ra.rope(x, options, positions=positions)
        for b in range(2):
            alone = ra.rope(x[b : b + 1], options, positions=positions[b : b + 1])
            np.testing.assert_array_equal(both[b : b + 1], alone)

    def test_a_stated_length_is_that_of_every_row(self):
        got, _ = frequencies(ra.DynamicScaling(2, 16, length=32), length=2)
        want, _ = frequencies(ra.DynamicScaling(2, 16), length=32)
        np.testing.assert_allclose(got, want, rtol=1e-12)

    def test_two_channels_have_no_base_to_change(self):
        got, _ = frequencies(ra.DynamicScaling(2, 4), length=64, R=2)
        np.testing.assert_allclose(got, [1], rtol=1e-12)

    def test_yarn_keeps_fast_pairs_and_slows_the_others(self):
        f = 10000.0 ** (-np.arange(32) / 32)
        got, factor = frequencies(ra.YarnScaling(4, 4096), R=64)
        low = math.floor(64 * math.log(4096 / (2 * math.pi * 32)) / (2 * math.log(10000)))
        high = math.ceil(64 * math.log(4096 / (2 * math.pi)) / (2 * math.log(10000)))
        ramp = np.clip((np.arange(32) - low) / (high - low), 0, 1)
        np.testing.assert_allclose(got, f * (1 - ramp) + f / 4 * ramp, rtol=1e-9)
        np.testing.assert_allclose(factor, 0.1 * math.log(4) + 1, rtol=1e-12)
        assert 0 < low < high < 31
        assert frequencies(ra.YarnScaling(4, 4096, attention_factor=0.5), R=64)[1] == pytest.approx(0.5)
        assert frequencies(ra.YarnScaling(0.5, 4096), R=64)[1] == pytest.approx(1)

    def test_llama3_has_three_regions(self):
        f = 500000.0 ** (-np.arange(32) / 32)
        got, _ = frequencies(ra.Llama3Scaling(8, 8192), R=64, base=500000.0)
        turns = 8192 * f / (2 * math.pi)
        t = (turns - 1) / 3
        want = np.where(turns > 4, f, np.where(turns < 1, f / 8, (1 - t) * f / 8 + t * f))
        np.testing.assert_allclose(got, want, rtol=1e-9)
        assert ((turns > 1) & (turns < 4)).any()

    def test_longrope_has_two_lists(self):
        scaling = ra.LongRopeScaling([1, 2, 3, 4], [5, 6, 7, 8], 16, factor=4)
        np.testing.assert_allclose(frequencies(scaling, length=16)[0], self.PLAIN / [1, 2, 3, 4], rtol=1e-12)
        np.testing.assert_allclose(frequencies(scaling, length=17)[0], self.PLAIN / [5, 6, 7, 8], rtol=1e-12)
        factor = frequencies(scaling)[1]
        np.testing.assert_allclose(factor, math.sqrt(1 + math.log(4) / math.log(16)), rtol=1e-12)


class TestSinusoidal:
    def test_the_first_rows(self):
        """Position 0 is 0, 1, 0, 1; pair i turns with base^(-2i/C)."""
        table = ra.sinusoidal_steps(np.zeros((1, 2, 4))).table
        want = [[0, 1, 0, 1], [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]]
        np.testing.assert_allclose(table[0], want, rtol=1e-12)
        halves = ra.sinusoidal_steps(np.zeros((1, 2, 4)), halves=True).table
        np.testing.assert_array_equal(halves[..., [0, 2, 1, 3]], table)

    def test_offset_and_positions(self):
        x = np.ones((2, 3, 6))
        far = ra.sinusoidal(x, offset=100)
        np.testing.assert_array_equal(far, ra.sinusoidal(x, positions=np.array([[100, 101, 102]] * 2)))
        with pytest.raises(ra.InvalidConfig):
            ra.sinusoidal(x, offset=1, positions=np.zeros((2, 3), np.int64))
        with pytest.raises(ra.ShapeMismatch):
            ra.sinusoidal(np.ones((1, 1, 3)))


class TestAlibi:
    @pytest.mark.parametrize(
        ("num_heads", "exponents"),
        [(0, []), (1, [8]), (2, [4, 8]), (3, [4, 8, 2]), (8, range(1, 9)), (6, [2, 4, 6, 8, 1, 3])],
    )
    def test_slopes(self, num_heads, exponents):
        np.testing.assert_array_equal(ra.alibi_slopes(num_heads), 2.0 ** -np.array(exponents))

    def test_the_bias_grows_with_the_distance(self, dtype):
        steps = ra.alibi_steps(np.zeros((1, 2, 2, 3), dtype), q_offset=1)
        np.testing.assert_array_equal(steps.bias[0] * 16, [[-1, 0, -1], [-2, -1, 0]])
        np.testing.assert_array_equal(steps.output[0], steps.bias)
        assert steps.bias.dtype == steps.slopes.dtype == dtype


class TestRelativeBias:
    def buckets(self, distances, rows=32, **options):
        """Of keys at these distances from query 0, on both sides."""
        reach = max(map(abs, distances))
        scores = np.zeros((1, 1, 1, 2 * reach + 1))
        found = ra.relative_bias_steps(scores, np.zeros((rows, 1)), q_offset=reach, **options).buckets[0]
        return [int(found[reach + r]) for r in distances]

    def test_the_buckets_of_t5(self):
        """16 for each direction: 8 exact ones, then 8 to 127 by the logarithm."""
        assert self.buckets([0, -1, -7, -8, -11, -12, -16, -127, -128, -1000]) == [
            *(0, 1, 7, 8, 8, 9, 10, 15, 15, 15)
        ]
        assert self.buckets([1, 7, 8, 16, 1000]) == [17, 23, 24, 26, 31]

    def test_one_way(self):
        got = self.buckets([5, 0, -15, -16, -128, -1000], bidirectional=False)
        assert got == [0, 0, 15, 16, 31, 31]

    def test_a_whole_quotient_comes_out_whole(self):
        """ln(d/e) / ln(m/e) · (n - e) is 1 at d = 2, 2 at d = 4, 3 at d = 8."""
        got = self.buckets([-1, -2, -4, -8], rows=8, bidirectional=True, max_distance=8)
        assert got == [1, 2, 3, 3]

    def test_each_head_has_its_column(self):
        table = np.arange(8.0).reshape(4, 2)
        steps = ra.relative_bias_steps(np.ones((1, 2, 1, 2)), table, max_distance=4)
        np.testing.assert_array_equal(steps.output[0, :, 0], 1 + table[steps.buckets[0]].T)

    @pytest.mark.parametrize(("rows", "options"), [(3, {}), (2, {}), (1, {"bidirectional": False})])
    def test_too_few_buckets(self, rows, options):
        with pytest.raises(ra.ShapeMismatch, match="relative_bias: table: expected"):
            ra.relative_bias(np.zeros((1, 1, 1, 1)), np.zeros((rows, 1)), **options)
