"""What the Python package adds to the Rust core: arrays of any strides, dtypes, errors, signatures, threads."""

import inspect
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import rosetta_attention_rs as ra

REFERENCE = Path(__file__).parents[3] / "python/src"
RNG = np.random.default_rng(3)
RUNGS = {
    "naive": ra.sdpa,
    "blocked": lambda *a, **o: ra.blocked(*a, **o).output,
    **{tier: lambda *a, tier=tier, **o: ra.sdpa_simd(*a, tier=tier, **o).output for tier in ra.simd_tiers()},
    "threads": lambda *a, **o: ra.sdpa_threads(*a, threads=2, **o).output,
}


@pytest.fixture(params=RUNGS)
def rung(request):
    return RUNGS[request.param]


@pytest.fixture(params=["float32", "float64"])
def qkv(request):
    shapes = [(2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 3)]
    return [RNG.standard_normal(shape).astype(request.param) for shape in shapes]


def column(values, dtype="float32"):
    return np.array(values, dtype).reshape(1, 1, -1, 1)


# Arrays


def views_of(x):
    """The same numbers behind other strides: transposed, reversed, every other one, misaligned, a field."""
    yield "transposed", np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    yield "fortran", np.asfortranarray(x)
    yield "reversed", np.ascontiguousarray(x[:, ::-1, ::-1, ::-1])[:, ::-1, ::-1, ::-1]
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, x.dtype)
    wide[..., ::2] = x
    yield "every other", wide[..., ::2]
    shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    yield "odd address", shifted
    record = np.zeros(x.shape, np.dtype([("tag", "i1"), ("x", x.dtype)]))
    record["x"] = x
    yield "field of a record", record["x"]


def test_any_strides_give_the_same_bits(rung, qkv):
    want = rung(*qkv)
    for views in zip(*map(views_of, qkv), strict=True):
        names, arrays = zip(*views, strict=True)
        assert np.array_equal(rung(*arrays), want), names


def test_broadcast_views(qkv):
    q, k, v = qkv
    one = np.broadcast_to(k[:, :1], k.shape)
    assert np.array_equal(ra.sdpa(q, one, v), ra.sdpa(q, one.copy(), v))


def test_read_only_arrays(rung, qkv):
    want = rung(*qkv)
    for x in qkv:
        x.flags.writeable = False
    assert np.array_equal(rung(*qkv), want)


def test_contiguous_arrays_are_not_copied(tmp_path):
    shape = (1, 1, 2**33, 1)  # 32 GiB: holes of a file, which take no memory unless they are copied
    k = np.memmap(tmp_path / "holes", np.float32, "w+", shape=shape)
    assert k.flags.c_contiguous
    for x in (k, np.broadcast_to(np.float32(0), shape)):
        q = np.zeros((1, 1, 0, 1), np.float32)  # no query, so nothing is read either
        assert ra.sdpa(q, x, x).shape == (1, 1, 0, 1)


def test_results_are_arrays_of_their_own(qkv):
    steps = ra.sdpa_steps(*qkv)
    assert [x.shape for x in steps[:3]] == [(2, 4, 5, 3), (2, 4, 5, 7), (2, 4, 5)]
    for x in steps:
        assert x.dtype == qkv[0].dtype
        assert x.flags.c_contiguous
        assert x.flags.writeable
    assert steps._fields == ("output", "weights", "lse", "scores", "capped", "biased")


def test_inputs_are_left_alone(rung, qkv):
    before = [x.copy() for x in qkv]
    rung(*qkv, softcap=1.0, mask=ra.Mask(causal=True))
    assert all(np.array_equal(x, y) for x, y in zip(qkv, before, strict=True))


def test_denormals_survive(rung):
    v = column([1e-40, 1e-40])
    assert rung(np.zeros((1, 1, 1, 1), np.float32), np.zeros_like(v), v).item() == np.float32(1e-40)
    assert np.float64(1e-323) != 0.0


def test_importing_does_not_flush_denormals():
    code = "import rosetta_attention_rs, numpy as np; assert 1e-323 != 0 and np.float64(5e-324) * 1 > 0"
    subprocess.run([sys.executable, "-c", code], check=True)


# Options


def test_options_reach_the_core(rung):
    q, k, v = np.ones((1, 1, 1, 1)), column(np.log([1, 2, 1]), "float64"), column([3, 6, 100], "float64")
    mask = ra.Mask(keep=np.array([True, True, False]))
    assert np.isclose(rung(q, k, v, mask=mask), 5)
    assert np.isclose(rung(q, k, v, mask=ra.Mask(kv_lengths=np.array([2]))), 5)
    assert np.isclose(rung(q, k, v, mask=ra.Mask(causal=True, q_offset=1)), 5)
    assert np.isclose(rung(q, k, v, mask=ra.Mask(causal=True, q_offset=np.array([1]))), 5)
    assert np.isclose(rung(q, k, v, mask=ra.Mask(window=(None, 1))), 5)
    assert np.isclose(rung(q, k, v, bias=np.array([0, 0, -np.inf])), 5)
    assert np.isclose(rung(q, k, v, scale=0, mask=mask), 4.5)
    assert np.isclose(rung(q, k, v, mask=mask, sinks=np.array([0.0])), (3 + 12) / 4)
    lse = ra.sdpa_simd(q, k, v, mask=mask).lse
    assert np.isclose(lse, np.log(3))


def test_visible():
    table = ra.visible(ra.Mask(causal=True), 1, 2, 2, 3)
    assert table.dtype == bool
    assert table[0].tolist() == [[[True, False, False], [True, True, False]]] * 2


def test_scalars_of_numpy_are_numbers(rung, qkv):
    mask = ra.Mask(q_offset=np.int64(2), causal=np.True_, window=[np.int32(1), None])
    want = rung(*qkv, scale=0.5, softcap=2, mask=ra.Mask(q_offset=2, causal=True, window=(1, None)))
    assert np.array_equal(rung(*qkv, scale=np.float32(0.5), softcap=np.int64(2), mask=mask), want)


def test_softmax_with_a_sink():
    weights, lse = ra.softmax_lse(np.zeros((2, 3)), np.array([0.0, -np.inf]))
    assert np.allclose(weights, [[1 / 4] * 3, [1 / 3] * 3])
    assert np.allclose(lse, np.log([4, 3]))


def test_mha_groups_and_biases():
    layer = ra.MultiHeadAttention(np.eye(4), np.eye(4)[:2], np.eye(4)[:2], np.eye(4), 2, 1, b_o=np.ones(4))
    x = RNG.standard_normal((2, 1, 4))
    assert np.allclose(layer(x), np.concatenate([x[..., :2], x[..., :2]], axis=-1) + 1)
    assert layer.steps(x, mask=ra.Mask(causal=True)).weights.shape == (2, 2, 1, 1)


# Errors


def call(**changes):
    x = np.zeros((1, 2, 3, 4), np.float32)
    arguments = {"q": x, "k": x, "v": x} | changes
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(ra.AttentionError) as naive:
        ra.sdpa(q, k, v, **arguments)
    for rung in (ra.sdpa_simd, ra.sdpa_threads, ra.blocked):
        with pytest.raises(ra.AttentionError) as fast:
            rung(q, k, v, **arguments)
        assert re.sub("^blocked", "sdpa", str(fast.value)) == str(naive.value)
    assert re.fullmatch(r"sdpa: \w+: expected .+, got .+", str(naive.value))
    return naive.value.code


X = np.zeros((1, 2, 3, 4))
BAD_CALLS = {
    "dtype_mismatch": [
        {"q": X.astype(np.float16)},
        {"q": X.astype(np.int64)},
        {"k": X},
        {"k": [[[[0.0] * 4] * 3] * 2]},
        {"v": X.astype(">f4")},
        {"bias": X[0, 0, 0, :3]},
        {"bias": np.ones(3, bool)},
        {"sinks": np.zeros(2)},
        {"mask": ra.Mask(keep=np.ones(3, np.float32))},
        {"mask": ra.Mask(kv_lengths=np.array([3], np.int32))},
        {"mask": ra.Mask(q_offset=np.array([3.0]))},
    ],
    "shape_mismatch": [
        {"q": np.zeros((2, 3, 4), np.float32)},
        {"k": np.zeros((1, 2, 3, 5), np.float32)},
        {"sinks": np.zeros((2, 1), np.float32)},
        {"bias": np.zeros((1, 1, 1, 1, 1), np.float32)},
        {"mask": ra.Mask(keep=np.ones(2, bool))},
        {"mask": ra.Mask(kv_lengths=np.array([[3]]))},
        {"mask": ra.Mask(q_offset=np.array([0, 0]))},
        {"mask": ra.Mask(q_offset=np.array(0))},
    ],
    "invalid_config": [
        {"scale": np.inf},
        {"scale": "1"},
        {"scale": True},
        {"scale": 10**400},
        {"softcap": 0},
        {"softcap": -1.0},
        {"softcap": np.nan},
        {"mask": ra.Mask(causal="yes")},
        {"mask": ra.Mask(causal=1)},
        {"mask": ra.Mask(window=(1,))},
        {"mask": ra.Mask(window=3)},
        {"mask": ra.Mask(window=(-1, None))},
        {"mask": ra.Mask(window=(None, 1.5))},
        {"mask": ra.Mask(window=(None, True))},
        {"mask": ra.Mask(q_offset=0.5)},
        {"mask": ra.Mask(q_offset=[0])},
        {"mask": ra.Mask(kv_lengths=np.array([4]))},
        {"mask": ra.Mask(kv_lengths=np.array([-1]))},
    ],
}


@pytest.mark.parametrize(("code", "changes"), [(code, bad) for code in BAD_CALLS for bad in BAD_CALLS[code]])
def test_bad_calls(code, changes):
    assert call(**changes) == code


def test_bad_layers():
    eye, x = np.eye(4), np.zeros((1, 2, 4))
    good = {"w_q": eye, "w_k": eye, "w_v": eye, "w_o": eye, "num_heads": 2}
    for code, changes in [
        ("invalid_config", {"num_heads": 0}),
        ("invalid_config", {"num_heads": 2.0}),
        ("invalid_config", {"num_kv_heads": -1}),
        ("dtype_mismatch", {"w_k": eye.astype(np.float32)}),
        ("dtype_mismatch", {"b_q": np.zeros(4, np.float32)}),
        ("shape_mismatch", {"w_v": np.zeros(4)}),
        ("shape_mismatch", {"b_o": np.zeros(3)}),
    ]:
        with pytest.raises(ra.AttentionError) as caught:
            ra.MultiHeadAttention(**good | changes)(x)
        assert (caught.value.code, str(caught.value)[:5]) == (code, "mha: "), changes
    with pytest.raises(ra.ShapeMismatch):
        ra.MultiHeadAttention(**good)(np.zeros((2, 4)))
    with pytest.raises(ra.ShapeMismatch):
        ra.MultiHeadAttention(**good)(x, np.zeros((2, 2, 4)))


# Signatures


# What only the reference has: readers of PyTorch's own weights.
REFERENCE_ONLY = {"from_torch_state_dict", "keep_from_torch"}
# What its classes do for its own modules, and that is the core's business here.
INSIDE = {
    *("frequencies", "drawn", "visible", "keys", "score_scale"),
    *("check_attend", "attend_checked", "longest_after", "describe", "content", "restore"),
    *("new_row", "num_bytes", "take", "share", "writable", "free", "twin"),
    *("given", "keep_chosen", "entries"),
}


def test_signatures_are_those_of_the_reference():
    sys.path.append(str(REFERENCE))
    reference = pytest.importorskip("rosetta_attention")

    def face(owner, name):
        shown = str(inspect.signature(getattr(owner, name)))
        shown = re.sub(
            r", kv_positions: [^=]*= None(?=\))", "", shown
        )  # which caches alone set, inside the core here
        return re.sub(r"rosetta_attention\w*\.|Mask\(.*?\)|<.*?>", "", shown)

    for name in set(reference.__all__) - REFERENCE_ONLY:
        ours, theirs = getattr(ra, name), getattr(reference, name)
        if inspect.ismodule(theirs):
            classes = [name for name in vars(ours) if inspect.isclass(getattr(theirs, name, None))]
            assert {"Window", "HeavyHitters", "SnapKV", "KeyNorm"} <= set(classes)
            assert all(face(ours, name) == face(theirs, name) for name in classes)
            continue
        if not inspect.isclass(theirs):
            assert face(ra, name) == face(reference, name), name
            continue
        if issubclass(theirs, dict):
            assert list(ours.__annotations__) == list(theirs.__annotations__), name
            continue
        if issubclass(theirs, Exception):
            assert (ours.__name__, ours.code) == (name, theirs.code)
            continue
        assert ours.__name__ == theirs.__name__
        assert getattr(ours, "_fields", None) == getattr(theirs, "_fields", None)
        assert face(ra, name) == face(reference, name), name
        for method in [m for m in vars(theirs) if inspect.isfunction(getattr(theirs, m)) and m[:1] != "_"]:
            if method not in INSIDE or hasattr(ours, method):
                assert face(ours, method) == face(theirs, method), (name, method)


# The cache


def test_cache_grows_attends_and_forgets():
    cache = ra.KVCache(2, 1, 1, dtype=np.float64)
    zeros = np.zeros((2, 1, 3, 1))
    cache.append(zeros, np.array([1.0, 2, 6, 4, np.nan, np.nan]).reshape(2, 1, 3, 1), np.array([3, 1]))
    assert cache.lengths.tolist() == [3, 1]
    assert len(cache) == 3
    assert np.allclose(cache.attend(zeros[:, :, :1]).ravel(), [3, 4])
    causal = cache.attend_steps(zeros[:, :, :2], mask=ra.Mask(causal=True))
    assert np.allclose(causal.output.ravel(), [1.5, 3, 0, 4])
    k, v, lengths = cache.read()
    assert v.ravel().tolist() == [1, 2, 6, 4, 0, 0]
    assert (k.shape, lengths.tolist()) == ((2, 1, 3, 1), [3, 1])
    assert cache.keys().shape == cache.values().shape == (2, 1, 3, 1)
    cache.truncate([1, 0])
    assert np.allclose(cache.attend(zeros[:, :, :1]).ravel(), [1, 0])
    cache.reset()
    assert (len(cache), cache.dtype, cache.value_dim, cache.capacity) == (0, np.float64, 1, None)


def test_bad_cache_calls_change_nothing():
    cache = ra.KVCache(1, 1, 2, 3, capacity=2)
    k, v = np.ones((1, 1, 1, 2), np.float32), np.ones((1, 1, 1, 3), np.float32)
    cache.append(k, v)
    two = np.repeat(k, 2, axis=2), np.repeat(v, 2, axis=2)
    for code, bad in [
        ("capacity_exceeded", lambda: cache.append(*two)),
        ("dtype_mismatch", lambda: cache.append(k.astype(float), v)),
        ("dtype_mismatch", lambda: cache.append(k, v, np.array([1], np.int32))),
        ("shape_mismatch", lambda: cache.append(k, k)),
        ("shape_mismatch", lambda: cache.append(k[0], v)),
        ("invalid_config", lambda: cache.append(k, v, np.array([2]))),
        ("shape_mismatch", lambda: cache.truncate([1, 1])),
        ("invalid_config", lambda: cache.truncate([2])),
        ("invalid_config", lambda: cache.truncate([0.5])),
        ("invalid_config", lambda: cache.truncate([True])),
        ("invalid_config", lambda: cache.attend(k, mask=ra.Mask(kv_lengths=np.array([1])))),
        ("shape_mismatch", lambda: cache.attend(v)),
        ("dtype_mismatch", lambda: cache.attend(k.astype(float))),
    ]:
        with pytest.raises(ra.AttentionError) as caught:
            bad()
        assert caught.value.code == code
    assert cache.lengths.tolist() == [1]
    assert np.array_equal(cache.read()[1], v)


@pytest.mark.parametrize(
    ("code", "arguments", "options"),
    [
        ("invalid_config", (-1, 1, 1), {}),
        ("invalid_config", (1, 0, 1), {}),
        ("invalid_config", (1, 1, 0), {}),
        ("invalid_config", (1, 1, 1.0), {}),
        ("invalid_config", (1, 1, 1, -1), {}),
        ("invalid_config", (1, 1, 1), {"capacity": -1}),
        ("dtype_mismatch", (1, 1, 1), {"dtype": np.int16}),
    ],
)
def test_bad_cache_configs(code, arguments, options):
    with pytest.raises(ra.AttentionError) as caught:
        ra.KVCache(*arguments, **options)
    assert caught.value.code == code


# Threads


def test_more_threads_give_the_bits_of_one():
    q, k, v = (RNG.standard_normal((1, heads, 300, 40)) for heads in (4, 2, 2))
    want = ra.sdpa_simd(q, k, v, mask=ra.Mask(causal=True))
    for threads in (1, 2, np.int64(3)):
        found = ra.sdpa_threads(q, k, v, mask=ra.Mask(causal=True), threads=threads)
        assert all(np.array_equal(x, y) for x, y in zip(found, want, strict=True))
    for bad in (0, -1, 2.0, True, None):
        with pytest.raises(ra.InvalidConfig, match="sdpa: threads: expected an integer >= 1, got"):
            ra.sdpa_threads(q, k, v, threads=bad)


def test_eight_threads_get_the_bits_of_one(rung, qkv):
    want = rung(*qkv)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: rung(*qkv), range(64)))
    assert all(np.array_equal(x, want) for x in results)


def test_a_cache_shared_by_threads():
    cache = ra.KVCache(1, 1, 1, dtype=np.float64)
    one = np.ones((1, 1, 1, 1))

    def work(turn):
        if turn % 2:
            cache.append(one, one)
            return 1.0
        return cache.attend(one).item()  # of ones alone, or of nothing

    with ThreadPoolExecutor(8) as pool:
        results = np.array(list(pool.map(work, range(200))))
    # Each of n <= 100 weights is 1/n, rounded once, and so is each of n sums of them: n + 1 roundings at most.
    assert np.all((results == 0) | (abs(results - 1) <= 101 * 2.0**-53))
    assert len(cache) == 100
