"""The contiguous KV cache. With queries of 0 an attend gives the mean of the values that it sees."""

import numpy as np
import pytest
from backends import Backend, column

NAN = np.nan


def append(lib: Backend, cache, values, lengths=None) -> None:
    """Adds `values`, one number a position, or a list of them for each row; the keys are 1."""
    v = np.atleast_2d(np.array(values, "float64"))[:, None, :, None]
    cache.append(
        lib.from_numpy(np.ones_like(v)),
        lib.from_numpy(v),
        None if lengths is None else lib.array(lengths, "int64"),
    )


def attend(lib: Backend, cache, queries=1, batch=1, **options) -> list[float]:
    mask = lib.mask(**options.pop("mask", {}))
    return (
        lib.to_numpy(cache.attend(lib.array(np.zeros((batch, 1, queries, 1))), mask=mask, **options))
        .ravel()
        .tolist()
    )


def held(lib: Backend, cache) -> list[list[float]]:
    """The values of each row up to its length."""
    _, v, lengths = map(lib.to_numpy, cache.read())
    return [v[b, 0, :n, 0].tolist() for b, n in enumerate(lengths)]


@pytest.fixture
def cache(lib):
    return lib.cache(1, 1, 1)


CAUSAL = {"causal": True}


@pytest.mark.parametrize("chunks", [[5], [3, 2], [1, 1, 1, 1, 1], [0, 2, 0, 3]], ids=str)
def test_any_split_into_chunks(lib, cache, chunks):
    """ChunkedPrefill: a square causal mask is wrong for the second chunk."""
    rows, values = [], [1, 2, 4, 8, 16]
    for size in chunks:
        append(lib, cache, values[len(rows) : len(rows) + size])
        rows += attend(lib, cache, queries=size, mask=CAUSAL)
    np.testing.assert_allclose(rows, [1, 1.5, 7 / 3, 3.75, 6.2])


def test_decode_with_a_window(lib, cache):
    """WindowBoundary: nothing leaves the window of 3 before position 3."""
    rows = []
    for value in [1, 2, 4, 8, 16, 32, 64]:
        append(lib, cache, [value])
        rows += attend(lib, cache, mask={"causal": True, "window": (2, 0)})
    np.testing.assert_allclose(rows, [1, 1.5, 7 / 3, 14 / 3, 28 / 3, 56 / 3, 112 / 3])


def test_keep_one_of_two_drafts(lib, cache):
    """Rollback."""
    append(lib, cache, [1, 2, 4])
    append(lib, cache, [100, 200])
    cache.truncate([4])
    append(lib, cache, [8])
    np.testing.assert_allclose(attend(lib, cache), [23])
    assert held(lib, cache) == [[1, 2, 4, 100, 8]]


def test_reset_forgets(lib, cache):
    """StaleReset."""
    append(lib, cache, [1, 2, 3])
    cache.reset()
    assert len(cache) == 0
    assert attend(lib, cache) == [0]
    append(lib, cache, [5])
    assert attend(lib, cache) == [5]
    assert held(lib, cache) == [[5]]


def test_two_caches_share_nothing(lib):
    """CacheAliasing."""
    first, second = lib.cache(1, 1, 1), lib.cache(1, 1, 1)
    append(lib, first, [1, 2, 3])
    assert len(second) == 0


def test_read_is_a_copy_and_zero_beyond_a_row(lib):
    cache = lib.cache(2, 1, 1, capacity=4)
    append(lib, cache, [[1, NAN], [2, 3]])
    cache.truncate([1, 2])
    k, v, lengths = cache.read()
    np.testing.assert_array_equal(lib.to_numpy(v)[:, 0, :, 0], [[1, 0], [2, 3]])
    np.testing.assert_array_equal(lib.to_numpy(k)[:, 0, :, 0], [[1, 0], [1, 1]])
    assert lengths.tolist() == [1, 2]
    v[:] = 99
    lengths[:] = 0
    assert held(lib, cache) == [[1], [2, 3]]


def test_rows_have_lengths_of_their_own(lib):
    """Junk beyond a row's length is overwritten by its next append and never seen."""
    cache = lib.cache(2, 1, 1)
    append(lib, cache, [[1, NAN, NAN], [2, 4, 6]], lengths=[1, 3])
    assert attend(lib, cache, batch=2) == [1, 4]
    append(lib, cache, [[3], [8]])
    assert held(lib, cache) == [[1, 3], [2, 4, 6, 8]]
    assert attend(lib, cache, batch=2) == [2, 5]
    cache.truncate([0, 2])
    assert attend(lib, cache, batch=2) == [0, 3]


def test_the_last_query_stands_on_the_last_position_of_its_row(lib):
    cache = lib.cache(2, 1, 1)
    append(lib, cache, [[1, 3, NAN, NAN], [1, 2, 4, 8]], lengths=[2, 4])
    # Row 0 has 2 positions for 3 queries: the first of them stands at -1 and sees nothing.
    np.testing.assert_allclose(attend(lib, cache, 3, batch=2, mask=CAUSAL), [0, 1, 2, 1.5, 7 / 3, 3.75])


def test_an_offset_may_be_given(lib):
    cache = lib.cache(2, 1, 1)
    append(lib, cache, [[1, 2, 4, 8], [1, 2, 4, 8]])
    assert attend(lib, cache, batch=2, mask={"causal": True, "q_offset": [1, 0]}) == [1.5, 1]
    assert attend(lib, cache, batch=2, mask={"causal": True, "q_offset": 1}) == [1.5, 1.5]


def test_mask_and_bias_are_over_the_positions_held(lib, cache):
    append(lib, cache, [1, 2, 4])
    assert attend(lib, cache, mask={"keep": [True, False, True]}) == [2.5]
    assert attend(lib, cache, bias=lib.array([-np.inf, 0, -np.inf])) == [2]


def test_attend_gives_what_sdpa_gives(lib, dtype):
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal(s).astype(dtype) for s in ((2, 4, 2, 3), (2, 2, 5, 3), (2, 2, 5, 7)))
    cache = lib.cache(2, 2, 3, 7, dtype=dtype, capacity=8)
    cache.append(lib.from_numpy(k), lib.from_numpy(v))
    got = cache.attend_steps(lib.from_numpy(q), mask=lib.mask(causal=True), scale=0.3, softcap=2.0)
    want = lib.sdpa(q, k, v, mask={"causal": True, "q_offset": 3}, scale=0.3, softcap=2.0)
    for name in want._fields:
        np.testing.assert_array_equal(lib.to_numpy(getattr(got, name)), getattr(want, name))


def test_growth_keeps_what_is_there(lib):
    cache = lib.cache(1, 2, 3, 2)
    rng = np.random.default_rng(2)
    k, v = rng.standard_normal((1, 2, 40, 3)), rng.standard_normal((1, 2, 40, 2))
    for start, end in [(0, 1), (1, 3), (3, 3), (3, 20), (20, 40)]:
        cache.append(lib.array(k[:, :, start:end]), lib.array(v[:, :, start:end]))
        np.testing.assert_array_equal(lib.to_numpy(cache.keys()), k[:, :, :end])
        np.testing.assert_array_equal(lib.to_numpy(cache.values()), v[:, :, :end])


def test_appended_arrays_are_copied(lib, cache):
    v = column([1, 2])
    cache.append(lib.from_numpy(v), lib.from_numpy(v))
    v[:] = 50
    assert held(lib, cache) == [[1, 2]]


def test_a_full_capacity(lib):
    cache = lib.cache(1, 1, 1, capacity=2)
    append(lib, cache, [1, 3])
    assert attend(lib, cache) == [2]
    append(lib, cache, [])
    with pytest.raises(lib.api.CapacityExceeded):
        append(lib, cache, [5])
    assert held(lib, cache) == [[1, 3]]


def test_a_capacity_that_only_one_row_exceeds(lib):
    cache = lib.cache(2, 1, 1, capacity=2)
    append(lib, cache, [[1, 2], [3, 4]], lengths=[2, 1])
    with pytest.raises(lib.api.CapacityExceeded):
        append(lib, cache, [[5], [6]])
    append(lib, cache, [[5], [6]], lengths=[0, 1])
    assert held(lib, cache) == [[1, 2], [3, 6]]


@pytest.mark.parametrize("capacity", [None, 0, 3])
@pytest.mark.parametrize("batch", [0, 2])
def test_an_empty_cache(lib, batch, capacity):
    cache = lib.cache(batch, 1, 1, capacity=capacity)
    append(lib, cache, np.zeros((batch, 0)))
    steps = cache.attend_steps(lib.array(np.zeros((batch, 1, 2, 1))), mask=lib.mask(causal=True))
    assert lib.to_numpy(steps.output).tolist() == np.zeros((batch, 1, 2, 1)).tolist()
    assert lib.to_numpy(steps.lse).tolist() == np.full((batch, 1, 2), -np.inf).tolist()
    cache.truncate([0] * batch)
    cache.reset()
    assert [tuple(x.shape) for x in cache.read()] == [(batch, 1, 0, 1), (batch, 1, 0, 1), (batch,)]


def test_the_same_script_after_a_reset(lib):
    cache = lib.cache(1, 1, 1, capacity=8)

    def script():
        append(lib, cache, [1, 2, 4])
        first = attend(lib, cache, 3, mask=CAUSAL)
        cache.truncate([2])
        append(lib, cache, [16])
        return first + attend(lib, cache, mask=CAUSAL), held(lib, cache)

    before = script()
    cache.reset()
    assert script() == before


def test_lengths_are_a_copy(lib, cache):
    append(lib, cache, [1, 2])
    cache.lengths[0] = 0
    assert cache.lengths.tolist() == [2]


def test_truncate_takes_what_lengths_gives(lib, cache):
    append(lib, cache, [1, 2, 4])
    cache.truncate((cache.lengths - 1).tolist())
    assert held(lib, cache) == [[1, 2]]
