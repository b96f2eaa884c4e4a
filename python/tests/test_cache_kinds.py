"""Kinds of caches and their steps by hand. With queries of 0 an attend gives the mean of the values that it sees."""

import math

import numpy as np
import pytest
from caches import DV, EVICTING, KINDS, SIZES, append, queries, snapshot
from test_kv_cache import column

import rosetta_attention as ra

CAUSAL = ra.Mask(causal=True)
ZERO = np.zeros((1, 1, 1, 1))
PAGED, ROTATING = "paged", "rotating"


def paged(num_pages=8, page_size=4, batch=1):
    return ra.PagedCache(ra.PagePool(num_pages, page_size, 1, 1, dtype="float64"), batch)


def rotating(window=3, keep=0, batch=1):
    return ra.RotatingCache(batch, 1, 1, window=window, keep=keep, dtype="float64")


def whole(batch=1, **options):
    return ra.KVCache(batch, 1, 1, dtype="float64", **options)


def add(cache, *values, **options):
    cache.append(np.ones((1, 1, len(values), 1)), column(values), **options)


def mean(cache, **options) -> float:
    return cache.attend(ZERO, **options).item()


def held(cache) -> list[float]:
    return cache.read()[1].ravel().tolist()


def positions(cache) -> list[int]:
    return cache.slot_positions().ravel().tolist()


def test_nothing_leaves_a_window_that_is_just_full():
    """WindowBoundary."""
    cache, rows = rotating(3), []
    for value in [1, 2, 4, 8, 16, 32, 64]:
        add(cache, value)
        rows.append(mean(cache))
    np.testing.assert_allclose(rows, [1, 1.5, 7 / 3, 14 / 3, 28 / 3, 56 / 3, 112 / 3])
    assert positions(cache) == [5, 6]  # what a query at 7 could see
    assert cache.lengths.tolist() == [3]


def test_first_tokens_stay():
    cache = rotating(2, keep=1)
    add(cache, 1, 2, 4, 8)
    add(cache, 16)
    np.testing.assert_allclose(mean(cache), 25 / 3)
    assert positions(cache) == [0, 4]


@pytest.mark.parametrize("make", [whole, rotating, paged], ids=["contiguous", "rotating", "paged"])
def test_keep_one_of_two_drafts(make):
    """Rollback."""
    cache = make(window=9) if make is rotating else make()
    add(cache, 1, 2, 4)
    add(cache, 100, 200)
    cache.truncate([4])
    add(cache, 8)
    np.testing.assert_allclose(mean(cache), 23)


def test_a_window_rolls_back_only_as_far_as_it_is_held():
    """Rollback."""
    cache = rotating(3)
    add(cache, 1, 2, 4, 8)
    add(cache, 16, 32)  # forgets 0 and 1
    before = snapshot(cache)
    with pytest.raises(ra.InvalidConfig):
        cache.truncate([3])  # a query at 3 sees 1
    assert snapshot(cache) == before
    cache.truncate([4])
    add(cache, 64)
    np.testing.assert_allclose(mean(cache), 76 / 3)


def test_forks_of_a_page_that_is_not_full():
    """CopyOnWrite."""
    first = paged()
    add(first, 1, 2)
    second = first.fork()
    assert first.stats().pages == (1, 1, 7)
    add(first, 10)
    add(second, 20)
    np.testing.assert_allclose([mean(first), mean(second)], [13 / 3, 23 / 3])
    assert first.stats().pages == (2, 0, 6)
    first.reset()
    np.testing.assert_allclose(mean(second), 23 / 3)
    second.reset()
    add(second, 3)
    assert held(second) == [3]


def test_padding_writes_to_no_page():
    """PadSlot: slots 0 and 1 of the pool are written, the last one is not."""
    cache = paged(num_pages=2)
    add(cache, 5, np.nan, lengths=np.int64([1]))
    add(cache, np.nan, 6, lengths=np.int64([1]), padding="left")
    assert held(cache) == [5, 6]
    assert cache.pool.v.ravel().tolist().count(0) == 6


def test_an_append_takes_all_its_pages_or_none():
    cache = paged(num_pages=3, page_size=2, batch=2)
    k = np.ones((2, 1, 3, 1))
    cache.append(k, k, np.int64([3, 1]))
    before = snapshot(cache)
    with pytest.raises(ra.CapacityExceeded):
        cache.append(k, k, np.int64([2, 1]))
    assert snapshot(cache) == before
    cache.append(k, k, np.int64([1, 1]))
    fork = cache.fork()
    with pytest.raises(ra.CapacityExceeded):
        fork.append(k, k, np.int64([1, 0]))
    cache.truncate([3, 2])  # both forks refer to the page that is cut
    with pytest.raises(ra.CapacityExceeded):
        cache.append(k, k, np.int64([1, 0]))  # no page for the copy
    fork.reset()
    cache.append(k, k, np.int64([1, 0]))
    assert cache.stats().pages == (3, 0, 0)


def test_two_rows_that_write_to_one_page_need_one_copy():
    cache = paged(num_pages=3, page_size=4, batch=2)
    k = np.ones((2, 1, 1, 1))
    cache.append(k, k, np.int64([1, 0]))
    cache.reorder([0, 0])
    assert cache.stats().pages == (1, 1, 2)
    cache.append(k, k)
    assert cache.stats().pages == (2, 0, 1)


def test_equal_prefixes_become_one():
    cache = paged(num_pages=9, page_size=2, batch=3)
    v = np.array([[1, 2, 3, 4, 5], [1, 2, 3, 9, 5], [1, 2, 3, 4, 5]], "float64")[:, None, :, None]
    tokens = np.int64([[1, 2, 3, 4, 5], [1, 2, 3, 9, 5], [7, 2, 3, 4, 5]])
    cache.append(v, v, tokens=tokens)
    assert cache.stats().pages == (8, 1, 1)  # rows 0 and 1 share their first page
    np.testing.assert_array_equal(cache.read()[1], v)
    assert cache.stats().num_bytes == 8 * 2 * 2 * 8
    cache.append(v[:, :, :1], v[:, :, :1])  # tokens that are not known end the prefix
    assert cache.stats().pages == (8, 1, 1)
    cache.truncate([0, 5, 5])
    assert cache.stats().pages == (6, 0, 3)
    np.testing.assert_array_equal(cache.read()[1][1:], v[1:])


def test_beams_of_a_cross_cache():
    cache = ra.CrossCache(2, 1, 1, dtype="float64")
    v = np.float64([[1, 3], [5, 9]])[:, None, :, None]
    cache.append(np.ones_like(v), v, np.int64([2, 1]))
    cache.reorder([1, 1])
    assert cache.attend(np.zeros((2, 1, 1, 1))).ravel().tolist() == [5, 5]
    for refused in (
        lambda: cache.append(v, v),
        lambda: cache.truncate([0, 0]),
        lambda: cache.attend(np.zeros((2, 1, 1, 1)), mask=CAUSAL),
        lambda: cache.attend(np.zeros((2, 1, 1, 1)), mask=ra.Mask(window=(1, None))),
    ):
        with pytest.raises(ra.InvalidConfig):
            refused()
    cache.reset()
    cache.append(v, v)


def test_evicted_positions_leave_gaps():
    cache = whole()
    add(cache, 1, 2, 4, 8)
    cache.evict([1, 2, 9])
    assert mean(cache) == 4.5
    add(cache, 16)
    assert positions(cache) == [0, 3, 4]
    assert mean(cache, mask=ra.Mask(window=(1, 0))) == 12
    cache.truncate([2])
    add(cache, 32)
    assert positions(cache) == [0, 3, 4]
    cache.evict([3, 4])
    cache.shift(-1, 1)
    add(cache, 7)
    assert positions(cache) == [0, 4]


@pytest.mark.parametrize(("by", "start"), [(-1, 0), (-1, 2), (-3, 3), (2**53, 1)])
def test_a_shift_that_would_disturb_the_order(by, start):
    cache = whole()
    add(cache, 1, 2, 4, 8)
    before = snapshot(cache)
    with pytest.raises(ra.InvalidConfig):
        cache.shift(by, start)
    assert snapshot(cache) == before


def _turning(kind: str, k: np.ndarray, options: ra.Rope) -> np.ndarray:
    """How far keys that were turned three times can be from keys that were turned once, (B, Hkv, T, 1).

    A number is at most N, the length of the longest pair of channels of its token, wherever that is turned to. Rounding
    moves it by N / 254, a pair by sqrt(2) of that, and turning keeps the length of what it was moved by. So n roundings
    of both together, which themselves lengthen a pair by as much, move it by E = n sqrt(2) (N + E) / 254. Groups of
    tokens share the longest N of the row.
    """
    exact = KINDS["contiguous"](dtype="float64", rope=options)
    exact.append(k, np.zeros((*k.shape[:3], DV)))
    pairs = np.sort(np.abs(exact.read()[0]), axis=-1)[..., -2:]
    longest = np.linalg.norm(pairs, axis=-1, keepdims=True)  # (B, Hkv, T, 1)
    if kind == "contiguous":
        return longest * 1e-12
    if kind == "kivi":  # an evict of a whole group leaves the codes of the others
        longest = np.broadcast_to(longest.max(axis=2, keepdims=True), longest.shape)
    each = (3 + 1) * math.sqrt(2) / 254
    return longest * (each / (1 - each) + 2.0**-20)  # in float32


@pytest.mark.parametrize("kind", ["contiguous", "int8", "kivi"])
@pytest.mark.parametrize(
    "options",
    [
        ra.Rope(),
        ra.Rope(base=20.0, interleaved=True, rotary_dim=2),
        ra.Rope(scaling=ra.YarnScaling(4, 8)),
        ra.Rope(scaling=ra.LongRopeScaling([1.0, 2.0], [1.0, 3.0], 16, 8.0, length=99)),
    ],
    ids=str,
)
def test_shifted_keys_stand_where_they_would_have(kind, options):
    """Shifts add up, and the attention factor of a scaling is not applied twice."""
    cache, other = (KINDS[kind](dtype="float64", rope=options) for _ in range(2))
    step = append(np.random.default_rng(3), 5, 5)
    step.apply(cache)
    cache.evict([0, 1])
    cache.shift(7, 2)
    cache.shift(-9, 3)
    other.append(step.k[:, :, 2:], step.v[:, :, 2:])
    moved, fresh = cache.read()[0], other.read()[0]
    assert np.all(np.abs(moved - fresh) <= _turning(kind, step.k[:, :, 2:], options))
    assert cache.slot_positions().tolist() == other.slot_positions().tolist()
    held = ra.KVCache(*SIZES, dtype="float64")  # of the keys as they are, which an attend must see
    q = queries(1, 2)
    turned = ra.rope(q, options, positions=cache.lengths[:, None] - [2, 1])
    for each, keys in ((cache, moved), (other, fresh)):
        held.reset()
        held.append(keys, each.read()[1])
        want = held.attend(turned, mask=CAUSAL)
        np.testing.assert_allclose(each.attend(q, mask=CAUSAL), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunks", [(3,), (2, 1), (1, 1, 1)])
def test_rope_by_hand(chunks):
    """RopePosition: 2.380015 for a new token at position 0, 2.163366 for keys that are turned twice."""
    cache = ra.KVCache(1, 1, 2, 1, dtype="float64", rope=ra.Rope())
    unit, v = np.array([1.0, 0]).reshape(1, 1, 1, 2), column([1, 2, 4])
    for start, count in zip(np.cumsum((0, *chunks)), chunks, strict=False):
        cache.append(np.repeat(unit, count, 2), v[:, :, start : start + count])
    steps = cache.attend_steps(unit, scale=1)
    np.testing.assert_allclose(steps.scores.ravel(), [np.cos(2), np.cos(1), 1])
    np.testing.assert_allclose(steps.output.item(), 2.937694, atol=1e-6)


def test_two_parts_merge_to_the_whole():
    """LseNatural."""
    parts, v = [whole(), whole()], column([0, 4, 4, 4])
    parts[0].append(ZERO, v[:, :, :1])
    parts[1].append(np.zeros((1, 1, 3, 1)), v[:, :, 1:])
    (a, b) = (part.attend_steps(ZERO) for part in parts)
    merged = ra.merge(a.output, a.lse, b.output, b.lse)
    np.testing.assert_allclose([merged.output.item(), merged.lse.item()], [3, np.log(4)])


@pytest.mark.parametrize("options", [{"offset": 1}, {"scaling": ra.DynamicScaling(2.0, 8)}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rotation_that_would_turn_held_keys_anew(kind, options):
    with pytest.raises(ra.InvalidConfig):
        KINDS[kind](rope=ra.Rope(**options))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("code", "index"),
    [("shape_mismatch", [0]), ("invalid_config", [0, 1, 3]), ("invalid_config", [0, 1, -1])],
)
def test_a_row_that_is_not_there(kind, code, index):
    cache = KINDS[kind](dtype="float64")
    append(np.random.default_rng(0), 2, 2).apply(cache)
    before = snapshot(cache)
    with pytest.raises(ra.AttentionError) as caught:
        cache.reorder(index)
    assert (caught.value.code, snapshot(cache)) == (code, before)
    cache.reorder([2, 0, 2])
    assert cache.lengths.tolist() == [2, 2, 2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_stats_count_what_is_held(kind, dtype):
    cache = KINDS[kind](dtype=dtype)
    append(np.random.default_rng(0), [2, 0, 3], 3, dtype=dtype).apply(cache)
    stats = cache.stats()
    assert stats.positions.tolist() == [2, 0, 3]
    size = np.dtype(dtype).itemsize
    if kind == "kivi":  # two groups of two keys, a tail of one, and values by token; two heads
        assert stats.num_bytes == 2 * (2 * (2 * 4 + 4 * 4) + 4 * 4) + 2 * 5 * (3 + 4)
        return
    slot = 2 * {"int8": 7 + 8, "int4": 4 + 4 * (2 * 2 + 2), "fp8": 7}.get(kind, 7 * size)
    assert stats.num_bytes == (3 * 2 if kind == PAGED else 5) * slot
    assert stats.pages == ((3, 0, 61) if kind == PAGED else None)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("kind", ["contiguous", ROTATING, PAGED, "per_head"])
@pytest.mark.parametrize("rope", [None, ra.Rope()], ids=["plain", "rope"])
def test_a_layer_decodes_what_it_computes_at_once(kind, dtype, rope):
    rng = np.random.default_rng(1)
    weights = (rng.standard_normal(shape).astype(dtype) for shape in ((16, 6), (8, 6), (6, 6), (5, 12)))
    layer = ra.MultiHeadAttention(*weights, 4, 2, rope=rope)
    cache = (KINDS | EVICTING)[kind](dtype=dtype, rope=rope)
    x = rng.standard_normal((3, 6, 6)).astype(dtype)
    got = [layer.decode(x[:, :2], cache), *(layer.decode(x[:, t : t + 1], cache) for t in range(2, 6))]
    mask = CAUSAL
    if kind == ROTATING:
        i, j = np.arange(6)[:, None], np.arange(6)
        mask = ra.Mask(causal=True, keep=(i - j < 3) | (j < 1))
    tolerance = 1e-12 if dtype == "float64" else 0.02
    np.testing.assert_allclose(np.concatenate(got, axis=1), layer(x, mask=mask), atol=tolerance)
    before = snapshot(cache)
    for bad in (lambda: layer.decode(x, cache, softcap=-1), lambda: layer.decode(x[:2], cache)):
        with pytest.raises(ra.AttentionError):
            bad()
        assert snapshot(cache) == before
    with pytest.raises(ra.InvalidConfig):
        layer.decode(x, (KINDS | EVICTING)[kind](dtype=dtype, rope=ra.Rope(base=3.0)))
