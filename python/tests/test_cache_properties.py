"""What holds for any trace of steps, on every kind of cache."""

from dataclasses import replace
from itertools import pairwise

import caches
import numpy as np
import pytest
from caches import EVICTING, KEEP, KINDS, WINDOW, B, Held, append, queries, snapshot, traces
from hypothesis import given, settings
from hypothesis import strategies as st

import rosetta_attention as ra

CAUSAL = ra.Mask(causal=True)
ROPES = {"plain": None, "rope": ra.Rope(base=50.0)}

few = settings(max_examples=12)
many = settings(max_examples=60)
kinds = pytest.mark.parametrize("kind", KINDS)
ropes = pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)


def take(cache, step, held):
    """Whether the cache takes the step; a rollback beyond a window is refused, as `held` says, and changes nothing."""
    if held is not None and held.refuses(step, cache):
        before = snapshot(cache)
        with pytest.raises(ra.InvalidConfig, match="truncate: lengths: expected"):
            step.apply(cache)
        assert snapshot(cache) == before
        return False
    if held is not None:
        held.follow(step, cache)
    step.apply(cache)
    if held is not None:
        held.check(cache)
    return True


def replay(cache, trace):
    """The outputs after every step."""
    outputs, held = [], Held(cache) if cache.kind == "rotating" else None
    for number, step in enumerate(trace):
        take(cache, step, held)
        outputs.append(cache.attend(queries(number), mask=CAUSAL))
    return outputs


@ropes
@few
@given(traces())
def test_paged_is_contiguous(rope, trace):
    outputs = (replay(KINDS[kind](dtype="float64", rope=rope), trace) for kind in ("paged", "contiguous"))
    np.testing.assert_array_equal(*outputs)


@ropes
@many
@given(traces())
def test_rotating_is_contiguous_with_its_mask(rope, trace):
    rotating, full = (KINDS[kind](dtype="float64", rope=rope) for kind in ("rotating", "contiguous"))
    held = Held(rotating)
    for number, step in enumerate(trace):
        if not take(rotating, step, held):
            continue
        step.apply(full)
        assert rotating.row_lengths.tolist() == full.lengths.tolist()
        q = queries(number)
        distance = full.lengths[:, None, None, None] - np.arange(len(full))
        seen = (distance < WINDOW) | (np.arange(len(full)) < KEEP)
        following = ra.Mask(q_offset=full.lengths)  # after a rollback, what an older query saw may be gone
        want = full.attend(q, mask=replace(following, keep=seen))
        np.testing.assert_allclose(rotating.attend(q, mask=following), want, atol=1e-12)


@pytest.mark.parametrize("T", range(1, 9))
@pytest.mark.parametrize("past", range(8))
def test_a_chunk_attends_before_it_pushes_others_out(past, T):
    """RingWrap: also a chunk longer than the window, and one that goes round twice."""
    rotating, full = KINDS["rotating"](dtype="float64"), KINDS["contiguous"](dtype="float64")
    rng = np.random.default_rng(past)
    for step in (append(rng, past, past), append(rng, T, T)):
        step.apply(rotating)
        step.apply(full)
    distance = past + np.arange(T)[:, None] - np.arange(past + T)
    seen = (distance < WINDOW) | (np.arange(past + T) < KEEP)
    q = queries(1, T)
    want = full.attend(q, mask=ra.Mask(causal=True, keep=seen))
    np.testing.assert_allclose(rotating.attend(q), want, atol=1e-12)
    assert len(rotating.read()[0][0, 0]) == min(past + T, max(WINDOW - 1, 0) + min(KEEP, past + T))


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@few
@given(st.data())
def test_quantised_is_contiguous_on_restored_values(kind, dtype, data):
    trace = data.draw(traces(dtype))
    quantised, wide = KINDS[kind](dtype=dtype), np.result_type(dtype, "float32")
    for step in trace:
        step.apply(quantised)
    k, v = (ra.restore(codes).astype(wide) for codes in quantised.codes())
    full = KINDS["contiguous"](dtype=wide)
    full.append(k, v, quantised.lengths)
    q = queries(1, 2, dtype)
    want = full.attend(q.astype(wide), mask=CAUSAL).astype(dtype)
    np.testing.assert_array_equal(quantised.attend(q, mask=CAUSAL), want)
    np.testing.assert_array_equal(quantised.read()[0], k.astype(dtype))


@few
@given(traces())
def test_latent_is_contiguous_with_one_head(trace):
    latent, full = ra.LatentCache(B, 3, 1, dtype="float64"), ra.KVCache(B, 1, 4, 3, dtype="float64")
    for number, step in enumerate(trace):
        if isinstance(step, caches.Append):
            key = step.k[:, 0]
            latent.append(key[..., :3], key[..., 3:], step.lengths, padding=step.padding)
            full.append(key[:, None], key[:, None, :, :3], step.lengths, padding=step.padding)
        else:
            step.apply(latent)
            step.apply(full)
        q = queries(number)
        np.testing.assert_array_equal(latent.attend(q, mask=CAUSAL), full.attend(q, mask=CAUSAL))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "kivi"])
@ropes
@few
@given(st.data())
def test_one_by_one_is_all_at_once(kind, rope, data):
    """ChunkedPrefill, RopePosition. Keys that wait for their group are held as they came, until it is full."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    T = data.draw(st.integers(1, 7))
    cuts = sorted(data.draw(st.sets(st.integers(1, T))) | {0, T})
    whole, parts = (KINDS[kind](dtype="float64", rope=rope) for _ in range(2))
    step, q = append(rng, T, T), queries(2, T)
    step.apply(whole)
    outputs = []
    for start, end in pairwise(cuts):
        parts.append(step.k[:, :, start:end], step.v[:, :, start:end])
        outputs.append(parts.attend(q[:, :, start:end], mask=CAUSAL))
    np.testing.assert_allclose(np.concatenate(outputs, axis=2), whole.attend(q, mask=CAUSAL), atol=1e-12)
    for x, y in zip(whole.read(), parts.read(), strict=True):
        np.testing.assert_array_equal(x, y)


@kinds
@few
@given(traces())
def test_the_same_trace_after_a_reset(kind, trace):
    """StaleReset."""
    cache = KINDS[kind](dtype="float64")
    first = replay(cache, trace)
    cache.reset()
    np.testing.assert_array_equal(replay(cache, trace), first)


@kinds
@few
@given(traces(), traces())
def test_a_fork_changes_nothing_in_its_origin(kind, before, after):
    """CacheAliasing, CopyOnWrite: and it is what the origin was."""
    cache = KINDS[kind](dtype="float64")
    replay(cache, before)
    seen = snapshot(cache)[:-2]  # the pages of a pool are counted for all
    fork = cache.fork()
    assert snapshot(fork)[:-2] == seen
    replay(fork, after)
    fork.reset()
    assert snapshot(cache)[:-2] == seen


@kinds
@few
@given(traces(), st.permutations(range(B)))
def test_rows_are_independent(kind, trace, order):
    """Each row alone, in another order, does what it did among the others."""
    order = list(order)
    cache, other = (KINDS[kind](dtype="float64") for _ in range(2))
    for step in (step for step in trace if isinstance(step, caches.Append)):
        step.apply(cache)
        other.append(step.k[order], step.v[order], step.lengths[order], padding=step.padding)
    q = queries(3, 2)
    np.testing.assert_allclose(
        other.attend(q[order], mask=CAUSAL), cache.attend(q, mask=CAUSAL)[order], atol=1e-12
    )


@kinds
@ropes
@few
@given(data=st.data())
def test_a_file_goes_on_where_the_cache_stopped(tmp_path_factory, kind, rope, data):
    before, after = data.draw(traces()), data.draw(traces())
    cache, other = (KINDS[kind](dtype="float64", rope=rope) for _ in range(2))
    replay(cache, before)
    path = tmp_path_factory.mktemp("cache") / "cache.safetensors"
    ra.save(cache, path)
    append(np.random.default_rng(0), 2, 2).apply(other)
    ra.load(other, path)
    assert snapshot(other)[:-2] == snapshot(cache)[:-2]
    np.testing.assert_array_equal(replay(other, after), replay(cache, after))


@kinds
def test_append_attend_is_both_or_neither(kind):
    cache, other = (KINDS[kind](dtype="float64") for _ in range(2))
    rng = np.random.default_rng(1)
    for step in (append(rng, [1, 4, 0], 4), append(rng, [2, 0, 3], 3, "left")):
        q, options = queries(5, 2), {"mask": CAUSAL, "scale": 0.7}
        step.apply(other)
        got = cache.append_attend(step.k, step.v, q, step.lengths, padding=step.padding, **options)
        np.testing.assert_array_equal(got.output, other.attend(q, **options))
    before = snapshot(cache)
    for change in ({"q": q[:, :3]}, {"softcap": -1}, {"bias": np.zeros(99)}, {"padding": "top"}, {"k": q}):
        with pytest.raises(ra.AttentionError):
            cache.append_attend(**{"k": step.k, "v": step.v, "q": q, "lengths": step.lengths} | change)
        assert snapshot(cache) == before


@pytest.mark.parametrize("kind", ["contiguous", "rotating", "paged", "per_head"])
@pytest.mark.parametrize("options", [ra.Rope(base=50.0), ra.Rope(interleaved=True, rotary_dim=2)], ids=str)
@few
@given(st.data())
def test_keys_turned_at_every_attend_are_keys_turned_once(kind, options, data):
    """And what is held is what came."""
    make = (KINDS | EVICTING)[kind]
    at, once, plain = (
        make(dtype="float64", **rope)
        for rope in ({"rope": options, "rope_at": "attend"}, {"rope": options}, {})
    )
    held = Held(at) if kind == "rotating" else None
    for number, step in enumerate(data.draw(traces())):
        if isinstance(step, caches.Step) and step.name == "truncate" and kind == "per_head":
            continue
        if not take(at, step, held):
            continue
        for cache in (once, plain):
            step.apply(cache)
        if kind in EVICTING and number == 2:
            for cache in (at, once, plain):
                cache.evict([1, 2])
                cache.shift(-1, 3)
                cache.shift(40, 2)
        q = queries(number, 2)
        np.testing.assert_allclose(at.attend(q, mask=CAUSAL), once.attend(q, mask=CAUSAL), atol=1e-12)
        np.testing.assert_array_equal(at.read()[0], plain.read()[0])
        assert at.slot_positions().tolist() == once.slot_positions().tolist()


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8", "kivi"])
def test_codes_of_keys_that_are_not_turned(kind):
    """As without a rotation, also after a shift."""
    at, plain = (
        KINDS[kind](dtype="float64", **rope) for rope in ({"rope": ra.Rope(), "rope_at": "attend"}, {})
    )
    for cache in (at, plain):
        append(np.random.default_rng(0), [4, 0, 3], 4).apply(cache)
        cache.shift(5, 1)
    got, want = at.code_arrays(), plain.code_arrays()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_says_whether_keys_are_turned(kind, tmp_path):
    """Held as they came, keys are those of a cache without a rotation, and not those of one that turned them."""
    at, once, plain = (
        KINDS[kind](**rope) for rope in ({"rope": ra.Rope(), "rope_at": "attend"}, {"rope": ra.Rope()}, {})
    )
    append(np.random.default_rng(0), 2, 2, dtype="float32").apply(at)
    ra.save(at, tmp_path / "f")
    ra.load(plain, tmp_path / "f")
    np.testing.assert_array_equal(plain.read()[0], at.read()[0])
    with pytest.raises(ra.InvalidConfig):
        ra.load(once, tmp_path / "f")


@pytest.mark.parametrize("kind", KINDS | EVICTING)
@pytest.mark.parametrize(
    "options",
    [
        {"rope_at": "attend"},
        {"rope_at": "append"},
        {"rope": ra.Rope(), "rope_at": "never"},
        {"rope": ra.Rope(), "rope_at": True},
    ],
    ids=str,
)
def test_when_keys_cannot_be_turned(kind, options):
    with pytest.raises(ra.InvalidConfig):
        (KINDS | EVICTING)[kind](**options)
