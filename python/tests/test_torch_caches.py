"""The caches on tensors beside those on arrays: after every step of a trace they hold the same and answer alike."""

import numpy as np
import pytest
from caches import DV, HKV, SIZES, B, D, Step, append, queries, traces
from hypothesis import given
from hypothesis import strategies as st

import rosetta_attention as ra

torch = pytest.importorskip("torch")

from rosetta_attention import torch as rt  # noqa: E402

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}
ROPES = {
    "plain": lambda api: None,
    "rope": lambda api: api.Rope(base=20.0, interleaved=True, rotary_dim=2),
    "yarn": lambda api: api.Rope(scaling=api.YarnScaling(4.0, 8)),
}


def pool(api, pages=64, size=2, dtype=None):
    return api.PagePool(pages, size, HKV, D, DV, dtype=dtype or (torch.float64 if api is rt else np.float64))


def make(api, kind, rope="plain", **options):
    options["rope"] = ROPES[rope](api)
    if kind == "paged":
        return api.PagedCache(pool(api), B, **options)
    return api.KVCache(*SIZES, dtype=torch.float64 if api is rt else np.float64, **options)


def apply(step, cache):
    """A step of a trace on tensors."""
    if isinstance(step, Step):
        held = cache.lengths.tolist()
        if step.name == "truncate":
            cache.truncate([n % (most + 1) for n, most in zip(step.arguments, held, strict=True)])
        elif step.name == "reorder":
            cache.reorder([n % B for n in step.arguments])
        else:
            cache.reset()
        return
    k, v, lengths = (torch.from_numpy(x) for x in (step.k, step.v, step.lengths))
    cache.append(k, v, lengths, padding=step.padding)


def content(cache):
    """All that can be seen, as bytes."""
    stats = cache.stats()
    tensors = [*cache.read(), cache.slot_positions(), stats.positions]
    return [np.asarray(x).tobytes() for x in tensors] + [stats.num_bytes, stats.pages]


def agree(ours, theirs, T=2):
    """The same slots, the same memory, the same answers; what is turned may differ in the last bits."""
    for x, y in zip(ours.read(), theirs.read(), strict=True):
        np.testing.assert_allclose(x.numpy(), y, rtol=1e-13, atol=1e-14)
    np.testing.assert_array_equal(ours.slot_positions().numpy(), theirs.slot_positions())
    mine, other = ours.stats(), theirs.stats()
    assert mine.positions.tolist() == other.positions.tolist()
    assert mine[1:] == other[1:]
    q = queries(3, T)
    got = ours.attend_steps(torch.from_numpy(q), mask=rt.Mask(causal=True), softcap=3.0)
    want = theirs.attend_steps(q, mask=ra.Mask(causal=True), softcap=3.0)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x.numpy(), y, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@given(trace=traces())
def test_as_on_arrays(kind, rope, trace):
    ours, theirs = (make(api, kind, rope) for api in (rt, ra))
    for step in trace:
        apply(step, ours)
        step.apply(theirs)
        agree(ours, theirs)


@pytest.mark.parametrize("rope", ["rope", "yarn"])
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@given(trace=traces())
def test_keys_that_turn_at_every_attend(kind, rope, trace):
    late, early = (make(rt, kind, rope, rope_at=at) for at in ("attend", "append"))
    plain = make(rt, kind)
    for step in trace:
        for cache in (late, early, plain):
            apply(step, cache)
        assert content(late) == content(plain)  # as they came
        q = torch.from_numpy(queries(2, 2))
        got, want = (cache.attend(q, mask=rt.Mask(causal=True)) for cache in (late, early))
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize(
    ("rope", "at"), [("plain", "attend"), ("plain", "append"), ("rope", "never"), ("rope", 1)]
)
def test_a_bad_time_to_turn(kind, rope, at):
    with pytest.raises(rt.InvalidConfig):
        make(rt, kind, rope, rope_at=at)


@pytest.mark.parametrize("half", HALF)
def test_late_turning_does_not_round_to_a_half_type(half):
    k, q = (
        torch.from_numpy(np.random.default_rng(n).standard_normal((1, 1, n, 4))).to(HALF[half])
        for n in (5, 1)
    )
    cache = rt.KVCache(1, 1, 4, dtype=HALF[half], rope=rt.Rope(), rope_at="attend")
    wide = rt.KVCache(1, 1, 4, rope=rt.Rope())
    cache.append(k, k)
    wide.append(k.float(), k.float())
    assert torch.equal(cache.attend(q), wide.attend(q.float()).to(HALF[half]))


@pytest.mark.parametrize("rope", ROPES)
@given(trace=traces())
def test_paged_is_contiguous(rope, trace):
    paged, whole = (make(rt, kind, rope) for kind in ("paged", "contiguous"))
    for step in trace:
        for cache in (paged, whole):
            apply(step, cache)
        q = torch.from_numpy(queries(1, 2))
        assert content(paged)[:5] == content(whole)[:5]
        assert torch.equal(*(cache.attend(q, mask=rt.Mask(causal=True)) for cache in (paged, whole)))


@given(
    trace=traces(),
    words=st.lists(st.lists(st.integers(0, 1), min_size=6, max_size=6), min_size=B, max_size=B),
)
def test_equal_prefixes_take_the_pages_that_they_take_on_arrays(trace, words):
    """Keys and values follow from the tokens, of which there are two, so that prefixes are often equal."""
    ours, theirs = (make(api, "paged") for api in (rt, ra))
    table = np.random.default_rng(0).standard_normal((2, HKV, D + DV))
    for step in trace:
        if isinstance(step, Step):
            apply(step, ours)
            step.apply(theirs)
        else:
            tokens = np.array(words)[:, : step.k.shape[2]]  # (B, T)
            k, v = np.split(table[tokens].swapaxes(1, 2), [D], axis=3)  # (B, Hkv, T, D) and Dv
            theirs.append(k, v, step.lengths, padding=step.padding, tokens=tokens)
            tensors = (torch.from_numpy(np.ascontiguousarray(x)) for x in (k, v, step.lengths))
            ours.append(*tensors, padding=step.padding, tokens=torch.from_numpy(tokens))
        agree(ours, theirs)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@given(before=traces(), after=traces(), data=st.data())
def test_forks_do_not_see_each_other(kind, before, after, data):
    first, alone = (make(rt, kind) for _ in range(2))
    for step in before:
        for cache in (first, alone):
            apply(step, cache)
    second = first.fork()
    kept = content(second)[:5]
    for step in after:
        if data.draw(st.booleans()):
            apply(step, first)
            apply(step, alone)
    assert content(second)[:5] == kept
    assert content(first)[:5] == content(alone)[:5]
    first.reset()
    assert content(second)[:5] == kept


def one(pages=8, size=4, batch=1):
    return rt.PagedCache(rt.PagePool(pages, size, 1, 1, dtype=torch.float64), batch)


def add(cache, *values, **options):
    v = torch.tensor(values, dtype=torch.float64).reshape(1, 1, -1, 1)
    cache.append(torch.ones_like(v), v, **options)


def mean(cache):
    return cache.attend(torch.zeros(1, 1, 1, 1, dtype=torch.float64)).item()


def test_forks_of_a_page_that_is_not_full():
    first = one()
    add(first, 1, 2)
    second = first.fork()
    assert first.stats().pages == (1, 1, 7)
    add(first, 10)
    add(second, 20)
    np.testing.assert_allclose([mean(first), mean(second)], [13 / 3, 23 / 3])
    assert first.stats().pages == (2, 0, 6)
    first.reset()
    np.testing.assert_allclose(mean(second), 23 / 3)


def test_padding_writes_to_no_page():
    cache = one(pages=2)
    add(cache, 5, np.nan, lengths=torch.tensor([1]))
    add(cache, np.nan, 6, lengths=torch.tensor([1]), padding="left")
    assert cache.read()[1].flatten().tolist() == [5, 6]
    assert cache.pool.v.flatten().tolist().count(0) == 6


def test_an_append_takes_all_its_pages_or_none():
    cache = one(pages=3, size=2, batch=2)
    k = torch.ones(2, 1, 3, 1, dtype=torch.float64)
    cache.append(k, k, torch.tensor([3, 1]))
    before = content(cache)
    with pytest.raises(rt.CapacityExceeded):
        cache.append(k, k, torch.tensor([2, 1]))
    assert content(cache) == before
    cache.append(k, k, torch.tensor([1, 1]))
    fork = cache.fork()
    cache.truncate([3, 2])  # both forks refer to the page that is cut
    with pytest.raises(rt.CapacityExceeded):
        cache.append(k, k, torch.tensor([1, 0]))  # no page for the copy
    fork.reset()
    cache.append(k, k, torch.tensor([1, 0]))
    assert cache.stats().pages == (3, 0, 0)


def test_pages_are_compared_by_their_bits():
    for values, used in (([0.0, -0.0], 2), ([np.nan, np.nan], 1)):
        cache = one(size=1, batch=2)
        v = torch.tensor(values, dtype=torch.float64).reshape(2, 1, 1, 1)
        cache.append(v, v, tokens=torch.tensor([[7], [7]]))
        assert cache.stats().pages[0] == used


BAD = {
    "shape": lambda c, k, v, q: c.append(k, k),
    "type": lambda c, k, v, q: c.append(k.float(), v.float()),
    "lengths": lambda c, k, v, q: c.append(k, v, torch.tensor([1, 1, 3])),
    "padding": lambda c, k, v, q: c.append(k, v, padding="top"),
    "queries": lambda c, k, v, q: c.append_attend(k, v, q[:, :3]),
    "mask": lambda c, k, v, q: c.append_attend(k, v, q, mask=rt.Mask(kv_lengths=torch.tensor([1, 1, 1]))),
    "softcap": lambda c, k, v, q: c.append_attend(k, v, q, softcap=-1.0),
    "bias": lambda c, k, v, q: c.append_attend(k, v, q, bias=torch.zeros(3)),
    "half": lambda c, k, v, q: c.attend(q.half()),
    "truncate": lambda c, k, v, q: c.truncate([1, 9, 0]),
    "truncated rows": lambda c, k, v, q: c.truncate([0]),
    "reorder": lambda c, k, v, q: c.reorder([0, 1, 3]),
    "reordered rows": lambda c, k, v, q: c.reorder([0]),
    "room": lambda c, k, v, q: c.append(*(x.repeat(1, 1, 40, 1) for x in (k, v))),
}


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("name", BAD)
def test_a_call_that_fails_changes_nothing(kind, name):
    limited = {"contiguous": lambda: rt.KVCache(*SIZES, capacity=60, dtype=torch.float64)}
    cache = limited[kind]() if kind in limited else make(rt, kind)
    apply(append(np.random.default_rng(0), [2, 0, 3], 3), cache)
    before = content(cache)
    k, v = (torch.ones(B, HKV, 2, n, dtype=torch.float64) for n in (D, DV))
    with pytest.raises(rt.AttentionError):
        BAD[name](cache, k, v, torch.from_numpy(queries(0, 2)))
    assert content(cache) == before


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_append_attend_is_both(kind):
    one_call, two = (make(rt, kind, "rope") for _ in range(2))
    q = torch.from_numpy(queries(5, 2))
    for step in (append(np.random.default_rng(n), [2, 0, 3], 3, "left") for n in range(3)):
        k, v, lengths = (torch.from_numpy(x) for x in (step.k, step.v, step.lengths))
        got = one_call.append_attend(k, v, q, lengths, padding="left", mask=rt.Mask(causal=True))
        two.append(k, v, lengths, padding="left")
        assert torch.equal(got.output, two.attend(q, mask=rt.Mask(causal=True)))
    assert content(one_call) == content(two)


@pytest.mark.parametrize("half", HALF)
def test_pages_of_halves(half):
    cache = rt.PagedCache(pool(rt, dtype=HALF[half]), B)
    whole = rt.KVCache(*SIZES, dtype=HALF[half])
    k, v, q = (
        torch.from_numpy(x).to(HALF[half])
        for x in (*(np.random.default_rng(n).standard_normal((B, HKV, 3, n)) for n in (D, DV)), queries(0))
    )
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    cache.append(k, v, tokens=tokens)
    whole.append(k, v)
    cache.append(k, v, tokens=tokens)
    whole.append(k, v)
    got, want = (c.attend_steps(q) for c in (cache, whole))
    assert (got.output.dtype, got.lse.dtype) == (HALF[half], torch.float32)
    assert torch.equal(got.output, want.output)
    assert cache.stats().num_bytes == 3 * 3 * 2 * HKV * (D + DV) * 2  # three pages a row
    assert whole.stats().num_bytes == 3 * 6 * HKV * (D + DV) * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("rope", [None, rt.Rope()], ids=["plain", "rope"])
def test_a_layer_decodes_what_it_computes_at_once(kind, dtype, rope):
    rng = np.random.default_rng(1)
    weights = (torch.from_numpy(rng.standard_normal(n)).to(dtype) for n in ((16, 6), (8, 6), (6, 6), (5, 12)))
    layer = rt.MultiHeadAttention(*weights, 4, 2, rope=rope)
    caches = {
        "contiguous": lambda rope: rt.KVCache(*SIZES, dtype=dtype, rope=rope),
        "paged": lambda rope: rt.PagedCache(pool(rt, dtype=dtype), B, rope=rope),
    }
    cache = caches[kind](rope)
    x = torch.from_numpy(rng.standard_normal((3, 6, 6))).to(dtype)
    got = [layer.decode(x[:, :2], cache), *(layer.decode(x[:, t : t + 1], cache) for t in range(2, 6))]
    want = layer(x, mask=rt.Mask(causal=True))
    tolerance = 1e-12 if dtype == torch.float64 else 0.02  # as on arrays
    torch.testing.assert_close(torch.cat(got, dim=1), want, rtol=0, atol=tolerance)
    before = content(cache)
    for bad in (lambda: layer.decode(x, cache, softcap=-1), lambda: layer.decode(x[:2], cache)):
        with pytest.raises(rt.AttentionError):
            bad()
        assert content(cache) == before
    with pytest.raises(rt.InvalidConfig):
        layer.decode(x, caches[kind](rt.Rope(base=3.0)))


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("options", [{"offset": 1}, {"scaling": rt.DynamicScaling(2.0, 8)}], ids=str)
def test_a_rotation_that_would_turn_held_keys_anew(kind, options):
    rope = rt.Rope(**options)
    with pytest.raises(rt.InvalidConfig):
        rt.KVCache(*SIZES, rope=rope) if kind == "contiguous" else rt.PagedCache(pool(rt), B, rope=rope)


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("pages", [0, 3])
def test_an_empty_pool(batch, pages):
    cache = one(pages, batch=batch)
    k = torch.zeros(batch, 1, 0, 1, dtype=torch.float64)
    cache.append(k, k, tokens=torch.zeros(batch, 0, dtype=torch.int64))
    steps = cache.attend_steps(torch.zeros(batch, 1, 2, 1, dtype=torch.float64))
    assert steps.output.tolist() == np.zeros((batch, 1, 2, 1)).tolist()
    cache.reorder(range(batch))
    assert [tuple(x.shape) for x in cache.read()] == [(batch, 1, 0, 1), (batch, 1, 0, 1), (batch,)]
    assert cache.stats().pages == (0, 0, pages)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_every_tensor_is_on_the_device_of_the_cache(kind):
    """A stand-in for a second device: what is made without saying where is made on meta, and mixes with nothing."""
    rope, k = rt.Rope(scaling=rt.LinearScaling(2.0)), torch.ones(B, HKV, 3, D)
    q, lengths, tokens = torch.ones(B, 4, 2, D), torch.tensor([3, 0, 2]), torch.ones(B, 3, dtype=torch.int64)
    with torch.device("meta"):
        if kind == "paged":
            cache = rt.PagedCache(rt.PagePool(9, 2, HKV, D, device="cpu"), B, rope=rope)
            cache.append(k, k, lengths, tokens=tokens)
        else:
            cache = rt.KVCache(B, HKV, D, rope=rope, device="cpu")
            cache.append(k, k, lengths)
        steps = cache.append_attend(
            k, k, q, lengths, padding="left", mask=rt.Mask(causal=True, window=(2, 0))
        )
        cache.attend(q, mask=rt.Mask(q_offset=1))
        cache.truncate([2, 0, 1])
        cache.reorder([0, 0, 2])
        seen = [steps.output, *cache.fork().read(), cache.slot_positions(), cache.stats().positions]
    assert {x.device.type for x in seen} == {"cpu"}
