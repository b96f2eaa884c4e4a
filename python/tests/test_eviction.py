"""Policies by hand. With keys of log w, queries of 1 and a scale of 1 an attend gives every slot its share of the w."""

import itertools
import math

import numpy as np
import pytest
from caches import EVICTING, HQ, SIZES, B, append, queries, snapshot
from hypothesis import given
from hypothesis import strategies as st
from test_kv_cache import column

import rosetta_attention as ra
from rosetta_attention.eviction import HeavyHitters, KeyNorm, SnapKV, Window, slots_that_stay

ONE, ZERO = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1, 1))
NAN, INF = np.nan, np.inf


def shares(*weights, **options):
    """A cache of one head whose slots are given these shares by a query of 1, with values 1, 2, 4, 8, ..."""
    cache = ra.KVCache(1, 1, 1, dtype="float64", **options)
    cache.append(column(np.log(weights)), column([2.0**i for i in range(len(weights))]))
    return cache


def held(cache) -> list[float]:
    return cache.read()[1].ravel().tolist()


def look(cache, *slots: int) -> None:
    """An attend that sees these slots alone, all alike."""
    keep = np.isin(np.arange(len(cache)), slots)
    cache.attend(ZERO, mask=ra.Mask(keep=keep))


@pytest.mark.parametrize(
    ("policy", "stays"),
    [
        (Window(2), [4, 8]),
        (Window(3, sinks=1), [1, 4, 8]),
        (Window(2, sinks=2), [1, 2]),
        (SnapKV(2, ONE), [2, 8]),
        (SnapKV(2, ONE, sinks=1), [1, 8]),
        (SnapKV(2, ONE, recent=1), [2, 8]),
        (SnapKV(3, ONE, sinks=1, recent=1), [1, 2, 8]),
        (KeyNorm(2), [1, 4]),
        (KeyNorm(2, recent=1), [1, 8]),
    ],
    ids=str,
)
def test_by_hand(policy, stays):
    """The slots are looked at with 1, 4, 2 and 5 of 12, and their keys are the logarithms of these."""
    cache = shares(1, 4, 2, 5)
    cache.evict_by(policy)
    assert held(cache) == stays
    np.testing.assert_allclose(cache.attend(ZERO).item(), np.mean(stays))


def test_heavy_hitters_by_hand():
    cache = shares(1, 1, 1, 1, track=True)
    look(cache, 1, 3)
    look(cache, 1)
    look(cache, 2, 3)
    assert cache.tracked().ravel().tolist() == [0, 1.5, 0.5, 1]
    second = cache.fork()
    cache.evict_by(HeavyHitters(2))
    assert (held(cache), cache.tracked().ravel().tolist()) == ([2, 8], [1.5, 1])
    assert cache.slot_positions().tolist() == [[1, 3]]
    second.evict_by(HeavyHitters(3, sinks=1, recent=1))
    assert held(second) == [1, 2, 8]


def test_queries_and_heads_of_a_group_are_added_up():
    """What a slot is given by two query heads of one KV head, with two queries each; a query sees nothing behind it."""
    cache = ra.KVCache(1, 2, 1, dtype="float64", track=True)
    cache.append(np.zeros((1, 2, 2, 1)), np.zeros((1, 2, 2, 1)))
    cache.attend(np.zeros((1, 4, 2, 1)), mask=ra.Mask(causal=True))
    assert cache.tracked().tolist() == [[[3, 1], [3, 1]]]
    assert cache.given(np.zeros((1, 4, 2, 1))).tolist() == [[[3, 1], [3, 1]]]
    assert cache.tracked().tolist() == [[[3, 1], [3, 1]]]  # nothing is tracked of that


def test_a_pool_lifts_the_neighbours():
    """Of slots 1 to 5 the third is looked at most; slots 0 and 6 do not compete, and lift nobody."""
    weights = [9, 1, 1, 5, 1, 2, 9]
    for pool, stays in ((1, [0, 3, 5, 6]), (3, [0, 2, 3, 6]), (5, [0, 1, 2, 6]), (2**53 - 1, [0, 1, 2, 6])):
        cache = shares(*weights)
        cache.evict_by(SnapKV(4, ONE, sinks=1, recent=1, pool=pool))
        assert cache.slot_positions().tolist() == [stays]


@pytest.mark.parametrize("policy", [Window, HeavyHitters, KeyNorm, lambda n: SnapKV(n, ONE)])
def test_every_budget(policy):
    """Of four slots: none, one, all but one, all, and room for more."""
    for budget in (0, 1, 3, 4, 5):
        cache = shares(8, 4, 2, 1, track=True)
        cache.attend(ONE, scale=1)
        cache.evict_by(policy(budget))
        assert len(cache) == min(budget, 4)
        cache.append(ONE, ONE)
        assert cache.slot_positions()[0, -1] == 4
    cache.evict_by(policy(0))
    assert cache.attend(ZERO).item() == 0


@pytest.mark.parametrize(
    ("scores", "stays"),
    [
        ([1, 1, 1, 1], [0, 1]),
        ([0, 1, 0, 1], [1, 3]),
        ([0, 2, 2, 2], [1, 2]),
        ([-0.0, 0.0, -0.0, 0.0], [0, 1]),
        ([NAN, -INF, NAN, 0], [1, 3]),
        ([NAN, NAN, NAN, 0], [0, 3]),
        ([NAN, NAN, NAN, NAN], [0, 1]),
        ([INF, INF, NAN, 5], [0, 1]),
    ],
    ids=str,
)
def test_ties_and_nan(scores, stays):
    assert np.flatnonzero(slots_that_stay(np.array(scores, float), 2)).tolist() == stays


SCORES = st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.5, -1.0, NAN, INF, -INF]), max_size=9)


@given(SCORES, *(st.integers(0, n) for n in (10, 3, 3, 3)))
def test_what_stays_is_what_a_plain_sort_keeps(scores, budget, sinks, recent, reach):
    """By the words of the rule, one slot after the other."""
    if budget and sinks + recent > budget:
        return
    n = len(scores)
    wanted = list(range(n)) if n <= budget else []
    if 0 < budget < n:
        between = range(sinks, n - recent)

        def order(score):
            return (-1, 0) if math.isnan(score) else (0, score)

        def pooled(slot):
            return max(order(scores[j]) for j in between if abs(j - slot) <= reach)

        best = sorted(between, key=lambda slot: (tuple(-x for x in pooled(slot)), slot))
        wanted = sorted([*range(sinks), *range(n - recent, n), *best[: budget - sinks - recent]])
    got = slots_that_stay(np.array(scores, float), budget, sinks, recent, 2 * reach + 1)
    assert np.flatnonzero(got).tolist() == wanted


def test_key_norms_are_added_up_in_order():
    """2^52 + 2^52 + 1 + 1 is 2^53 from the left and 2^53 + 2 from the right: of two keys alike but for their order,
    within a head or over the heads, the one that begins with the large numbers is the shorter.
    """
    x = np.array([2.0**26, 2.0**26, 1, 1])
    for H, D in ((1, 4), (4, 1)):
        keys = np.stack([x[::-1], x]).reshape(1, 2, H, D).swapaxes(1, 2)
        cache = ra.KVCache(1, H, D, dtype="float64")
        cache.append(keys, np.zeros((1, H, 2, D)))
        cache.evict_by(KeyNorm(1))
        assert cache.slot_positions().tolist() == [[1]]


@pytest.mark.parametrize("largest", [np.inf, 1e200, 1e154])
def test_keys_too_long_to_measure_are_longest(largest):
    """KeyNorm; NaN ranks behind even them, and the squares of 1e154 are too much only together."""
    cache = ra.KVCache(1, 2, 1, dtype="float64")
    keys = column([np.nan, largest, 1.3e154, 1])
    cache.append(np.concatenate([keys, keys], axis=1), np.zeros((1, 2, 4, 1)))
    for budget, stays in ((3, [1, 2, 3]), (1, [3])):
        cache.evict_by(KeyNorm(budget))
        assert cache.slot_positions().tolist() == [stays]


def policies(seed: int = 0, dtype: str = "float64"):
    q = queries(seed, 2, dtype)
    return [
        Window(3, sinks=1),
        KeyNorm(2, recent=1),
        HeavyHitters(3, sinks=1, recent=1),
        SnapKV(2, q),
        SnapKV(3, q, recent=1, pool=3, scale=0.3),
    ]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("rope", [{}, {"rope": ra.Rope()}, {"rope": ra.Rope(), "rope_at": "attend"}], ids=str)
@pytest.mark.parametrize("kind", ["contiguous", "int8", "int4"])
def test_evicted_is_masked(kind, rope, dtype):
    """What stays attends as if the others were hidden."""
    for policy in policies(dtype=dtype):
        cache = EVICTING[kind](dtype=dtype, track=True, **rope)
        append(np.random.default_rng(4), [6, 0, 3], 6, dtype=dtype).apply(cache)
        cache.attend(queries(8, 3, dtype))
        whole = cache.fork()
        cache.evict_by(policy)
        assert cache.lengths.tolist() == [policy.budget, 0, min(3, policy.budget)]
        keep = np.zeros((B, 1, 1, 6), bool)
        for b, row in enumerate(cache.slot_positions()):
            keep[b, ..., row[row >= 0]] = True
        q = queries(9, 2, dtype)
        want = whole.attend(q, mask=ra.Mask(causal=True, keep=keep))
        # Hidden slots weigh 0: two sums, of weights and of values below 4, may run in another order. With 6 terms each
        # side is within 16 u of the exact one, in all 2 · 16 u · 4 = 64 eps, and in float16 then a step apart.
        tolerance = 64 * np.finfo(np.result_type(dtype, "float32")).eps + (2**-9 if dtype == "float16" else 0)
        np.testing.assert_allclose(cache.attend(q, mask=ra.Mask(causal=True)), want, atol=tolerance)


@pytest.mark.parametrize("kind", EVICTING)
def test_weights_go_where_their_slot_goes(kind, tmp_path):
    """Each token has a number of its own as its value, and a list of what it was given."""
    rng = np.random.default_rng(5)
    heads, sums, cache = SIZES[1], {}, EVICTING[kind](dtype="float64", track=True)
    number = itertools.count(1)

    def token(kept):  # of a value, which the integer formats round by less than a half
        return round(float(kept) * 4)

    def check(cache, sums):
        _, v, _ = cache.read()
        got = cache.tracked()
        positions = np.broadcast_to(
            cache.slot_positions().reshape(B, -1, 1, got.shape[2])[:, :, 0], got.shape
        )
        for b, h, s in np.ndindex(*got.shape):
            wanted = sums[token(v[b, h, s, 0])][h] if positions[b, h, s] >= 0 else 0
            np.testing.assert_allclose(got[b, h, s], wanted, atol=1e-12)

    def add(T):
        k, v = rng.standard_normal((B, heads, T, 4)), np.empty((B, heads, T, 3))
        for b, t in np.ndindex(B, T):
            n = next(number)
            sums[n] = np.zeros(heads)
            v[b, :, t] = n / 4
        cache.append(k, v)

    def attend():
        steps = cache.attend_steps(queries(next(number), 2), mask=ra.Mask(causal=True))
        given = steps.weights.reshape(B, heads, HQ // heads, 2, -1).sum((2, 3))
        lengths = np.broadcast_to(cache.lengths.reshape(B, -1), (B, heads))
        _, v, _ = cache.read()
        for b, h, s in np.ndindex(*given.shape):
            if s < lengths[b, h]:
                sums[token(v[b, h, s, 0])][h] = sums[token(v[b, h, s, 0])][h] + given[b, h, s]

    for step in (
        lambda: add(4),
        attend,
        lambda: cache.evict([1]),
        lambda: add(2),
        attend,
        lambda: cache.evict_by(KeyNorm(4)),
        attend,
        lambda: cache.shift(2, 1),
        lambda: cache.evict_by(HeavyHitters(3, recent=1)),
        lambda: add(3),
        attend,
    ):
        step()
        check(cache, sums)
    fork, before = cache.fork(), snapshot(cache)
    fork.attend(queries(1))
    fork.evict_by(HeavyHitters(1))
    assert snapshot(cache) == before
    ra.save(cache, tmp_path / "f")
    other = EVICTING[kind](dtype="float64", track=True)
    ra.load(other, tmp_path / "f")
    check(other, sums)
    with pytest.raises(ra.InvalidConfig):
        ra.load(EVICTING[kind](dtype="float64"), tmp_path / "f")
    cache.reset()
    add(2)
    check(cache, sums)


def test_reordered_weights_and_a_truncation():
    cache = ra.KVCache(2, 1, 1, dtype="float64", track=True)
    cache.append(np.zeros((2, 1, 2, 1)), np.zeros((2, 1, 2, 1)), np.int64([2, 1]))
    cache.attend(np.zeros((2, 1, 1, 1)))
    cache.reorder([1, 0])
    assert cache.tracked().tolist() == [[[1, 0]], [[0.5, 0.5]]]
    cache.truncate([0, 1])
    assert cache.tracked().tolist() == [[[0]], [[0.5]]]
    cache.append(np.zeros((2, 1, 1, 1)), np.zeros((2, 1, 1, 1)))
    assert cache.tracked().tolist() == [[[0, 0]], [[0.5, 0]]]


def test_weights_are_added_up_in_float64():
    """Three times a third of float32 is more than 1, also within one attend; and the sums count as no content."""
    cache = ra.KVCache(1, 1, 1, track=True)
    cache.append(*(np.zeros((1, 1, 3, 1), "f") for _ in range(2)))
    cache.attend(np.zeros((1, 1, 3, 1), "f"))
    assert cache.tracked().ravel().tolist() == [3 * float(np.float32(1 / 3))] * 3
    assert cache.stats().num_bytes == 3 * 2 * 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_halves_are_added_up_wide(dtype):
    """A third is not rounded to a half type, in what is tracked as in what queries would give."""
    import ml_dtypes

    kind = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    cache = ra.KVCache(1, 1, 1, dtype=kind, track=True)
    cache.append(*(np.zeros((1, 1, 3, 1), kind) for _ in range(2)))
    q = np.zeros((1, 1, 1, 1), kind)
    cache.attend(q)
    for got in (cache.tracked(), cache.given(q)):
        assert got.ravel().tolist() == [float(np.float32(1 / 3))] * 3


Q = np.zeros((B, HQ, 1, 4))
REFUSED = [
    ("invalid_config", "window"),
    ("invalid_config", {"type": "window", "budget": 2}),
    *(("invalid_config", KeyNorm(budget)) for budget in (-1, 1.5, True, "2", None)),
    *(("invalid_config", KeyNorm(2, sinks=sinks)) for sinks in (-1, 0.5, True, "1", 3, 2**62)),
    *(("invalid_config", KeyNorm(2, recent=recent)) for recent in (-1, 0.5, False, "1", 3)),
    ("invalid_config", KeyNorm(9, sinks=5, recent=5)),
    ("invalid_config", Window(2, sinks=3)),
    *(("invalid_config", SnapKV(2, Q, pool=pool)) for pool in (0, 2, -1, 1.5, True, "3")),
    *(("invalid_config", SnapKV(2, Q, scale=scale)) for scale in (np.inf, np.nan, "1", True)),
    *(("shape_mismatch", SnapKV(2, q)) for q in (Q[:, :, :0], Q[..., :3], Q[:2], Q[:, :3], Q[0])),
    ("dtype_mismatch", SnapKV(2, Q.astype("float32"))),
    ("dtype_mismatch", SnapKV(2, Q.astype("int64"))),
    ("dtype_mismatch", SnapKV(9, [[0.0]])),
]


@pytest.mark.parametrize("kind", EVICTING)
@pytest.mark.parametrize(("code", "policy"), REFUSED, ids=lambda x: str(x)[:40])
def test_a_policy_that_is_refused_changes_nothing(kind, code, policy):
    cache = EVICTING[kind](dtype="float64", track=True)
    append(np.random.default_rng(0), [4, 0, 3], 4).apply(cache)
    before = snapshot(cache)
    with pytest.raises(ra.AttentionError, match="evict_by: ") as caught:
        cache.evict_by(policy)
    assert (caught.value.code, snapshot(cache)) == (code, before)


@pytest.mark.parametrize("kind", EVICTING)
def test_weights_that_were_not_tracked(kind):
    cache = EVICTING[kind](dtype="float64")
    for budget in (0, 2, 9):
        with pytest.raises(ra.InvalidConfig):
            cache.evict_by(HeavyHitters(budget))
    with pytest.raises(ra.InvalidConfig):
        cache.tracked()
    with pytest.raises(ra.InvalidConfig):
        EVICTING[kind](track=1)


def test_a_list_of_budgets_where_heads_share_their_slots():
    cache = EVICTING["contiguous"](dtype="float64")
    with pytest.raises(ra.InvalidConfig):
        cache.evict_by(KeyNorm([2, 2]))
