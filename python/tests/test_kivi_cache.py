"""Keys in groups of tokens, with a tail in float32: by hand, and against `quantise` along the tokens."""

import numpy as np
import pytest
from caches import HKV, SIZES, B, D, append, queries, snapshot, traces
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kv_cache import column

import rosetta_attention as ra
from rosetta_attention.eviction import KeyNorm, Window

F = np.float32
CAUSAL = ra.Mask(causal=True)
FORMATS = [("int8", False), ("int8", True), ("int4", False), ("int4", True)]
formats = pytest.mark.parametrize(("name", "zero_point"), FORMATS, ids=str)
few = settings(max_examples=15)


def small(n=2, name="int8", **options):
    return ra.KiviCache(1, 1, 1, format=name, key_groups=n, **options)


def add(cache, *keys):
    cache.append(column(keys, "float32"), column(np.ones(len(keys)), "float32"))


def keys(cache) -> list[float]:
    return cache.read()[0].ravel().tolist()


def test_by_hand():
    """Of 254, 3 the step is 2, and 3 becomes 4; the last one waits until it is not alone."""
    cache = small()
    add(cache, 254)
    assert keys(cache) == [254]
    add(cache, 3, 3)
    assert keys(cache) == [254, 4, 3]
    arrays = cache.code_arrays()
    assert arrays["k_codes"].ravel().tolist() == [127, 2, 0]
    assert (arrays["k_scale"].tolist(), arrays["k_tail"].tolist()) == ([[[[2]]]], [[[[3]]]])
    add(cache, 1)
    assert cache.code_arrays()["k_tail"].shape == (1, 1, 0, 1)
    cache.truncate([1])  # what is left of a group is what its codes stood for
    assert (keys(cache), cache.code_arrays()["k_scale"].size) == ([254], 0)


def test_channels_do_not_share_a_scale():
    """A channel that is a thousand times larger costs the other one nothing."""
    k = F([[1000, 1], [-900, -0.5], [800, 0.25]]).reshape(1, 1, 3, 2)
    by_channel, by_token = (
        ra.KiviCache(1, 1, 2, format="int8", key_groups=3),
        ra.QuantisedCache(1, 1, 2, format="int8"),
    )
    for cache in (by_channel, by_token):
        cache.append(k, k)
    lost = [np.abs(cache.read()[0] - k)[..., 1].max() for cache in (by_channel, by_token)]
    assert lost[0] <= 1 / 127 / 2 + 1e-6
    assert lost[1] == 1  # no code is left for it


def test_an_evict_in_a_group_joins_what_is_left():
    cache = small()
    add(cache, 254, 3, 127, 1, 9)
    assert keys(cache) == [254, 4, 127, 1, 9]
    cache.evict([1])
    step = F(9) / F(127)  # of 1 and 9, as 2 is that of 254 and 127
    assert keys(cache) == [254, 128, F(14) * step, F(127) * step]
    assert cache.code_arrays()["k_scale"].ravel().tolist() == [2, step]
    second = small()
    add(second, 254, 3, 127, 1, 9)
    second.evict_by(Window(3))
    np.testing.assert_allclose(keys(second), F([127, 1, 9]))


@formats
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_codes_against_quantise(name, zero_point, n, one_by_one):
    rng = np.random.default_rng(n)
    k, v = (rng.standard_normal((B, HKV, 7, m)).astype(F) * rng.lognormal(0, 3, m).astype(F) for m in (4, 3))
    k[:, :, 2:4, 1] = 0  # a group of zeros
    k[:, :, :, 2] = 5  # a constant channel
    cache = ra.KiviCache(*SIZES, format=name, key_groups=n, group=2, zero_point=zero_point)
    for t in range(7) if one_by_one else [slice(0, 7)]:
        part = slice(t, t + 1) if one_by_one else t
        cache.append(k[:, :, part], v[:, :, part])
    arrays, read = cache.code_arrays(), cache.read()[0]
    for g in range(7 // n):
        slots = slice(g * n, (g + 1) * n)
        want = ra.quantise(k[:, :, slots].swapaxes(2, 3), name, None, zero_point)  # (B, Hkv, D, n)
        np.testing.assert_array_equal(arrays["k_scale"][:, :, g], want.scale[..., 0])
        if zero_point:
            np.testing.assert_array_equal(arrays["k_zero"][:, :, g], want.zero[..., 0])
        np.testing.assert_array_equal(read[:, :, slots], ra.restore(want).swapaxes(2, 3))
        if name == "int8":
            np.testing.assert_array_equal(arrays["k_codes"][:, :, slots], want.codes.swapaxes(2, 3))
    full = 7 // n * n
    np.testing.assert_array_equal(arrays["k_tail"], k[:, :, full:])
    np.testing.assert_array_equal(read[:, :, full:], k[:, :, full:])
    assert not arrays["k_codes"][:, :, full:].any()
    values = ra.QuantisedCache(*SIZES, format=name, group=2, zero_point=zero_point)
    values.append(k, v)
    for part, x in values.code_arrays().items():
        if part.startswith("v"):
            np.testing.assert_array_equal(arrays[part], x)
    of_keys = ra.restore(cache.codes()[0])
    np.testing.assert_array_equal(of_keys[:, :, :full], read[:, :, :full])
    assert not of_keys[:, :, full:].any()


@formats
@pytest.mark.parametrize("rope", [{}, {"rope": ra.Rope()}, {"rope": ra.Rope(), "rope_at": "attend"}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@few
@given(st.data())
def test_it_attends_as_a_contiguous_cache_of_what_is_restored(name, zero_point, rope, dtype, data):
    """After any steps; and as many groups are quantised as are full, whatever happened before."""
    cache = ra.KiviCache(*SIZES, format=name, key_groups=3, zero_point=zero_point, dtype=dtype, **rope)
    for step in data.draw(traces(dtype)):
        step.apply(cache)
    if data.draw(st.booleans()):
        cache.evict(data.draw(st.lists(st.integers(0, 9))))
        cache.shift(2, 1)
    wide = np.result_type(dtype, "float32")
    full = ra.KVCache(*SIZES, dtype=wide, **rope)
    arrays, lengths = cache.code_arrays(), cache.lengths
    k, v = (ra.restore(codes).astype(wide) for codes in cache.codes())
    for b, length in enumerate(lengths):
        whole = length // 3 * 3
        k[b, :, whole:length] = arrays["k_tail"][b, :, : length - whole]
        assert not arrays["k_codes"][b, :, whole:].any()
    content = cache.content()
    full.restore(ra.cache.Content(lengths, content.next, content.positions, {"k": k, "v": v}))
    q = queries(1, 2, dtype)
    want = full.attend(q.astype(wide), mask=CAUSAL).astype(dtype)
    np.testing.assert_array_equal(cache.attend(q, mask=CAUSAL), want)
    np.testing.assert_array_equal(cache.read()[0], k.astype(dtype))


def test_a_group_that_is_cut_leaves_no_scale_behind():
    """After a truncate, what comes next is quantised with what is left alone."""
    cache, other = small(3), small(3)
    add(cache, 1.3, -2.4, 254, 5)
    before = keys(cache)
    cache.truncate([2])
    left = keys(cache)
    assert left == before[:2] == [2, -2]  # by steps of 2
    add(cache, 0.5)
    add(other, *left, 0.5)
    assert cache.code_arrays()["k_scale"].tolist() == other.code_arrays()["k_scale"].tolist()
    assert keys(cache) == keys(other)


def test_what_has_no_code_is_refused_at_once_and_a_range_when_its_group_is_full():
    cache = small(3, zero_point=True)
    largest = np.finfo(F).max
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ra.InvalidConfig, match=r"append: k: expected .+, got"):
            add(cache, bad)
    add(cache, largest)
    add(cache, -largest)  # two that wait
    before, q = snapshot(cache), np.zeros((1, 1, 1, 1), F)
    with pytest.raises(ra.InvalidConfig):
        add(cache, 0)
    with pytest.raises(ra.InvalidConfig):
        cache.append_attend(*(column([0], "float32"),) * 2, q)
    assert snapshot(cache) == before
    cache.truncate([1])
    add(cache, 0, 0)
    wide = ra.KiviCache(1, 1, 1, format="int8", key_groups=2, dtype="float64")
    with pytest.raises(ra.InvalidConfig):
        wide.append(column([1e39]), column([1]))


def test_an_evict_that_would_fill_a_group_without_a_scale():
    """Of a group of the largest number alone no scale is lost; of two ends together there is none."""
    cache, largest = small(2, zero_point=True), np.finfo(F).max
    add(cache, largest, largest, -largest, -largest)
    before = snapshot(cache)
    for evict in (lambda: cache.evict([0]), lambda: cache.evict_by(Window(3))):
        with pytest.raises(ra.InvalidConfig):
            evict()
        assert snapshot(cache) == before
    cache.evict([0, 1])
    assert keys(cache) == [-largest, -largest]


@pytest.mark.parametrize(
    "options",
    [
        {"key_groups": 0},
        {"key_groups": -2},
        {"key_groups": 1.5},
        {"key_groups": True},
        {"key_groups": None},
        *({"key_groups": 2, "format": name} for name in ("f16", "bf16", "fp8_e4m3")),
        {"key_groups": 2, "group": 0},
    ],
    ids=str,
)
def test_groups_that_are_refused(options):
    with pytest.raises(ra.InvalidConfig):
        ra.KiviCache(1, 1, 1, **{"format": "int8"} | options)


def test_a_file_of_other_groups(tmp_path):
    step = append(np.random.default_rng(0), [5, 0, 2], 5, dtype="float32")
    makers = {n: lambda n=n: ra.KiviCache(*SIZES, format="int4", key_groups=n) for n in (2, 3)} | {
        None: lambda: ra.QuantisedCache(*SIZES, format="int4")
    }
    for of_file, make in makers.items():
        cache = make()
        step.apply(cache)
        ra.save(cache, tmp_path / "f")
        for of_cache, other in makers.items():
            cache = other()
            if of_cache == of_file:
                ra.load(cache, tmp_path / "f")
                assert len(cache) == 5
            else:
                with pytest.raises(ra.InvalidConfig):
                    ra.load(cache, tmp_path / "f")


def test_a_file_with_the_wrong_tail(tmp_path):
    from rosetta_attention.tensor_file import read_tensors, write_tensors

    cache = ra.KiviCache(*SIZES, format="int8", key_groups=2)
    append(np.random.default_rng(0), [5, 0, 2], 5, dtype="float32").apply(cache)
    ra.save(cache, tmp_path / "f")
    arrays, metadata = read_tensors(tmp_path / "f")
    assert metadata["key_groups"] == "2"
    assert (arrays["k_scale"].shape, arrays["k_tail"].shape) == ((B, HKV, 2, D), (B, HKV, 1, D))
    for name in ("k_scale", "k_tail"):
        for wrong in (arrays[name][:, :, :0], arrays[name][..., :1], None):
            changed = {part: x for part, x in (arrays | {name: wrong}).items() if x is not None}
            write_tensors(tmp_path / "g", changed, metadata)
            with pytest.raises(ra.InvalidFile):
                ra.load(cache, tmp_path / "g")


@pytest.mark.parametrize("n", range(6))
def test_what_a_truncate_leaves_is_what_was_there(n):
    cache = ra.KiviCache(*SIZES, format="int4", key_groups=2)
    append(np.random.default_rng(0), 5, 5, dtype="float32").apply(cache)
    before = cache.read()[0]
    cache.truncate([n, 5, 0])
    after = cache.read()[0]
    np.testing.assert_array_equal(after[0, :, :n], before[0, :, :n])
    np.testing.assert_array_equal(after[1], before[1])


def test_a_policy_goes_by_what_is_read():
    """Of keys 1.4 and 1.6, both 2 by steps of 2, the first one stays."""
    cache = small(3)
    add(cache, 1.6, 1.4, 254)
    assert keys(cache) == [2, 2, 254]
    cache.evict_by(KeyNorm(1))
    assert cache.slot_positions().tolist() == [[0]]
