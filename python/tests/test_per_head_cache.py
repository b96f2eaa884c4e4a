"""A cache whose heads hold slots of their own: a contiguous one of one head for each head of a row."""

from dataclasses import replace

import numpy as np
import pytest
from caches import DV, HKV, HQ, SIZES, B, D, append, queries, snapshot
from test_eviction import policies
from test_kv_cache import column

import rosetta_attention as ra
from rosetta_attention.eviction import HeavyHitters, KeyNorm, SnapKV, Window

CAUSAL = ra.Mask(causal=True)
ROPES = {"plain": {}, "rope": {"rope": ra.Rope()}, "late": {"rope": ra.Rope(), "rope_at": "attend"}}
ropes = pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)


def two_heads(**options):
    """One row, keys of 1, 2, 3, 4 in head 0 and of 4, 3, 2, 1 in head 1, values 1, 2, 4, 8 and ten times these."""
    cache = ra.PerHeadCache(1, 2, 1, dtype="float64", **options)
    k, v = column([1, 2, 3, 4]), column([1, 2, 4, 8])
    cache.append(np.concatenate([k, k[:, :, ::-1]], axis=1), np.concatenate([v, 10 * v], axis=1))
    return cache


def means(cache, heads: int = 2):
    return cache.attend(np.zeros((1, heads, 1, 1))).ravel().tolist()


def test_every_head_keeps_its_own_slots_by_hand():
    cache = two_heads()
    assert means(cache) == [3.75, 37.5]
    cache.evict_by(KeyNorm(2))
    assert means(cache) == [1.5, 60]
    assert means(cache, 4) == [1.5, 1.5, 60, 60]
    assert cache.slot_positions().tolist() == [[[0, 1], [2, 3]]]
    cache.append(np.zeros((1, 2, 1, 1)), np.float64([16, 160]).reshape(1, 2, 1, 1))
    assert cache.slot_positions().tolist() == [[[0, 1, 4], [2, 3, 4]]]
    cache.evict([3])
    assert (cache.lengths.tolist(), means(cache)) == ([[3, 2]], [19 / 3, 100])
    cache.shift(-1, 4)
    assert cache.slot_positions().tolist() == [[[0, 1, 3], [2, 3, -1]]]


def test_budgets_of_heads():
    """A head without slots gives 0, and changes nothing in the other."""
    cache = two_heads()
    cache.evict_by(Window([0, 3], sinks=2))
    assert (cache.lengths.tolist(), means(cache)) == ([[0, 3]], [0, 110 / 3])
    assert cache.slot_positions().tolist() == [[[-1, -1, -1], [0, 1, 3]]]
    k, v, lengths = cache.read()
    assert (k[0, 0].any(), v[0, 0].any(), lengths.tolist()) == (False, False, [[0, 3]])
    assert cache.stats().positions.tolist() == [[0, 3]]
    assert cache.stats().num_bytes == 3 * 2 * 8
    cache.append(np.zeros((1, 2, 1, 1)), np.full((1, 2, 1, 1), 5.0))
    assert means(cache) == [5, 115 / 4]


@ropes
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_without_a_policy_it_is_contiguous(rope, dtype):
    """Ragged rows, masks and biases over the slots held, offsets; to the bit, as every head's arithmetic is its own."""
    rng = np.random.default_rng(1)
    caches = [make(*SIZES, dtype=dtype, **rope) for make in (ra.PerHeadCache, ra.KVCache)]
    for step in (append(rng, [4, 0, 2], 4, dtype=dtype), append(rng, [1, 3, 0], 3, "left", dtype)):
        for cache in caches:
            step.apply(cache)
    L, q = len(caches[0]), queries(3, 2, dtype)
    for options in (
        {"mask": CAUSAL},
        {"mask": ra.Mask(window=(1, 0), q_offset=np.int64([0, 2, -1]))},
        {"mask": ra.Mask(keep=rng.random((HQ, 1, L)) < 0.6, q_offset=1), "scale": 0.4},
        {"bias": rng.standard_normal((B, 1, 2, L)).astype(dtype), "softcap": 2.0},
    ):
        got, want = (cache.attend_steps(q, **options) for cache in caches)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_array_equal(x, y, strict=True)
    for x, y in zip(caches[0].read()[:2], caches[1].read()[:2], strict=True):
        np.testing.assert_array_equal(x, y)


@ropes
def test_a_head_is_a_cache_of_one_head(rope):
    """Any policy: what head h keeps is what a contiguous cache of that head alone would."""
    rng, G = np.random.default_rng(2), HQ // HKV
    first, second = append(rng, [6, 2, 4], 6), append(rng, [1, 3, 0], 3)
    for policy in policies():
        cache = ra.PerHeadCache(*SIZES, dtype="float64", track=True, **rope)
        alone = [ra.KVCache(B, 1, D, DV, dtype="float64", track=True, **rope) for _ in range(HKV)]

        def on_all(step, cache=cache, alone=alone):
            step.apply(cache)
            for h, one in enumerate(alone):
                one.append(step.k[:, h : h + 1], step.v[:, h : h + 1], step.lengths, padding=step.padding)

        def attend(q, cache=cache, alone=alone):
            got = cache.attend(q, mask=CAUSAL)
            want = [one.attend(q[:, h * G : (h + 1) * G], mask=CAUSAL) for h, one in enumerate(alone)]
            np.testing.assert_allclose(got, np.concatenate(want, axis=1), atol=1e-12)

        on_all(first)
        attend(queries(5, 3))
        cache.evict_by(policy)
        for h, one in enumerate(alone):
            own = {} if not isinstance(policy, SnapKV) else {"q": policy.q[:, h * G : (h + 1) * G]}
            one.evict_by(replace(policy, **own))
            got = cache.slot_positions()[:, h]
            want = np.full_like(got, -1)
            want[:, : len(one)] = one.slot_positions()
            assert got.tolist() == want.tolist()
        on_all(second)
        attend(queries(6, 2))
        np.testing.assert_allclose(
            cache.tracked()[:, 0, : len(alone[0])], alone[0].tracked()[:, 0], atol=1e-12
        )


def test_equal_choices_are_contiguous():
    """Window keeps the same in every head, and so does any policy where the heads are alike."""
    step = append(np.random.default_rng(0), [5, 3, 0], 5)
    step.k[:] = step.k[:, :1]
    for policy in (Window(3, sinks=1), KeyNorm(2, recent=1)):
        caches = [make(*SIZES, dtype="float64") for make in (ra.PerHeadCache, ra.KVCache)]
        for cache in caches:
            step.apply(cache)
            cache.evict_by(policy)
        q = queries(1, 2)
        np.testing.assert_array_equal(*(cache.attend(q, mask=CAUSAL) for cache in caches))


def test_rows_files_and_forks(tmp_path):
    cache = ra.PerHeadCache(*SIZES, track=True)
    append(np.random.default_rng(0), [4, 1, 0], 4, dtype="float32").apply(cache)
    cache.attend(queries(0, dtype="float32"))
    cache.evict_by(HeavyHitters([3, 1]))
    ra.save(cache, tmp_path / "f")
    other, fork, before = ra.PerHeadCache(*SIZES, track=True), cache.fork(), snapshot(cache)
    ra.load(other, tmp_path / "f")
    assert snapshot(other) == before
    fork.reorder([2, 0, 0])
    assert fork.lengths.tolist() == [[0, 0], [3, 1], [3, 1]]
    np.testing.assert_array_equal(fork.tracked()[1:], cache.tracked()[[0, 0]])
    fork.reset()
    assert (snapshot(cache), fork.stats().num_bytes) == (before, 0)
    for refused in (
        ra.KVCache(*SIZES, track=True),
        ra.PerHeadCache(*SIZES),
        ra.PerHeadCache(3, 1, D, DV, track=True),
    ):
        with pytest.raises(ra.InvalidConfig):
            ra.load(refused, tmp_path / "f")
    with pytest.raises(ra.CapacityExceeded):
        ra.load(ra.PerHeadCache(*SIZES, track=True, capacity=2), tmp_path / "f")


@pytest.mark.parametrize(
    ("code", "policy"),
    [
        ("shape_mismatch", KeyNorm([])),
        ("shape_mismatch", KeyNorm([2])),
        ("shape_mismatch", KeyNorm((2, 2, 2))),
        ("invalid_config", KeyNorm([2, -1])),
        ("invalid_config", KeyNorm([True, 2])),
        ("invalid_config", KeyNorm([2, None])),
        ("invalid_config", KeyNorm([[2], [2]])),
        ("invalid_config", KeyNorm([2, 1], sinks=1, recent=1)),
    ],
    ids=str,
)
def test_lists_that_are_refused(code, policy):
    cache = two_heads()
    before = snapshot(cache)
    with pytest.raises(ra.AttentionError) as caught:
        cache.evict_by(policy)
    assert (caught.value.code, snapshot(cache)) == (code, before)
    cache.evict_by(KeyNorm([0, 2], sinks=1, recent=1))  # a budget of 0 needs no room for them
    assert cache.lengths.tolist() == [[0, 2]]


def test_what_else_is_refused():
    cache = two_heads(capacity=5)
    before, k = snapshot(cache), np.zeros((1, 2, 2, 1))
    for code, bad in (
        ("capacity_exceeded", lambda: cache.append(k, k)),
        ("shape_mismatch", lambda: cache.append(k[:, :1], k)),
        ("shape_mismatch", lambda: cache.append(k.reshape(2, 1, 2, 1), k)),
        ("shape_mismatch", lambda: cache.attend(k[:, :1])),
        ("shape_mismatch", lambda: cache.attend(k, mask=ra.Mask(keep=np.ones(3, bool)))),
        ("shape_mismatch", lambda: cache.attend(k, mask=ra.Mask(q_offset=np.int64([0, 0])))),
        ("invalid_config", lambda: cache.truncate([0])),
        ("invalid_config", lambda: cache.append(k, k, padding="top")),
        ("invalid_config", lambda: cache.append_attend(k[:, :, :1], k[:, :, :1], k, softcap=-1)),
        ("invalid_config", lambda: cache.shift(-1, 0)),
        ("invalid_config", lambda: cache.reorder([1])),
        ("shape_mismatch", lambda: cache.reorder([0, 0])),
    ):
        with pytest.raises(ra.AttentionError) as caught:
            bad()
        assert (caught.value.code, snapshot(cache)) == (code, before)
    for options in ({"capacity": -1}, {"track": 1}, {"rope_at": "attend"}):
        with pytest.raises(ra.InvalidConfig, match="per_head_cache: "):
            ra.PerHeadCache(1, 2, 2, **options)


@pytest.mark.parametrize("B", [0, 1])
def test_nothing_is_no_bad_input(B):
    cache = ra.PerHeadCache(B, 2, 1, track=True)
    none = np.zeros((B, 2, 0, 1), np.float32)
    cache.append(none, none)
    cache.evict_by(HeavyHitters(0))
    assert cache.attend(np.zeros((B, 4, 1, 1), np.float32)).tolist() == np.zeros((B, 4, 1, 1)).tolist()
    assert cache.read()[0].shape == (B, 2, 0, 1)
