"""The same bad call gives the same code in every library, and a message that names function and argument."""

import re
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from backends import Backend

import rosetta_attention as ra
from rosetta_attention.checks import dtype_name

SHAPE, DTYPE, CONFIG, CAPACITY = "shape_mismatch", "dtype_mismatch", "invalid_config", "capacity_exceeded"
INT, BOOL = "int64", "bool"


def zeros(lib: Backend, *shape: int, dtype: str = "float64"):
    return lib.array(np.zeros(shape), dtype)


def sdpa(
    lib, *, q=(2, 4, 3, 5), k=(2, 2, 6, 5), v=(2, 2, 6, 7), dtypes=("float64",) * 3, mask=None, **options
):
    """A good call (B 2, Hq 4, Hkv 2, Tq 3, Tk 6, D 5, Dv 7) with one thing changed."""
    arrays = [zeros(lib, *shape, dtype=dtype) for shape, dtype in zip((q, k, v), dtypes, strict=True)]
    options = {name: lib.convert(x) for name, x in options.items()}
    return lib.api.sdpa(*arrays, mask=lib.mask(**mask or {}), **options)


SDPA = [
    ("q", SHAPE, {"q": (2, 3, 5)}),
    ("k", SHAPE, {"k": (2, 6, 5)}),
    ("v", SHAPE, {"v": (1, 2, 2, 6, 7)}),
    ("q", SHAPE, {"q": (2, 3, 3, 5)}),
    ("q", SHAPE, {"k": (2, 0, 6, 5), "v": (2, 0, 6, 7)}),
    ("q", SHAPE, {"q": (2, 4, 3, 0), "k": (2, 2, 6, 0)}),
    ("k", SHAPE, {"k": (1, 2, 6, 5)}),
    ("v", SHAPE, {"v": (1, 2, 6, 7)}),
    ("k", SHAPE, {"k": (2, 2, 6, 4)}),
    ("v", SHAPE, {"v": (2, 4, 6, 7)}),
    ("v", SHAPE, {"v": (2, 2, 5, 7)}),
    ("q", DTYPE, {"dtypes": (INT, "float64", "float64")}),
    ("k", DTYPE, {"dtypes": ("float16", "float32", "float32")}),
    ("k", DTYPE, {"dtypes": ("float64", "float32", "float64")}),
    ("v", DTYPE, {"dtypes": ("float64", "float64", "float32")}),
    ("mask", DTYPE, {"mask": {"keep": np.zeros((3, 6))}}),
    ("mask", DTYPE, {"mask": {"keep": np.zeros((3, 6), np.int64)}}),
    ("mask", SHAPE, {"mask": {"keep": np.zeros((3, 5), bool)}}),
    ("mask", SHAPE, {"mask": {"keep": np.zeros((2, 3, 6), bool)}}),
    ("mask", SHAPE, {"mask": {"keep": np.zeros((1, 2, 4, 3, 6), bool)}}),
    ("bias", DTYPE, {"bias": np.zeros((3, 6), bool)}),
    ("bias", DTYPE, {"bias": np.zeros((3, 6), np.float32)}),
    ("bias", SHAPE, {"bias": np.zeros((6, 3))}),
    ("bias", SHAPE, {"bias": np.zeros((1, 1, 1, 1, 1))}),
    ("kv_lengths", DTYPE, {"mask": {"kv_lengths": np.zeros(2, np.int32)}}),
    ("kv_lengths", DTYPE, {"mask": {"kv_lengths": (6, 6)}}),
    ("kv_lengths", SHAPE, {"mask": {"kv_lengths": [6]}}),
    ("kv_lengths", SHAPE, {"mask": {"kv_lengths": [[6, 6]]}}),
    ("kv_lengths", CONFIG, {"mask": {"kv_lengths": [6, 7]}}),
    ("kv_lengths", CONFIG, {"mask": {"kv_lengths": [-1, 6]}}),
    ("q_offset", DTYPE, {"mask": {"q_offset": np.zeros(2)}}),
    ("q_offset", SHAPE, {"mask": {"q_offset": [0, 0, 0]}}),
    ("q_offset", CONFIG, {"mask": {"q_offset": 1.5}}),
    ("q_offset", CONFIG, {"mask": {"q_offset": True}}),
    ("q_offset", CONFIG, {"mask": {"q_offset": 2**70}}),
    ("q_offset", CONFIG, {"mask": {"q_offset": -(2**70)}}),
    ("window", CONFIG, {"mask": {"window": (2**70, None)}}),
    ("window", CONFIG, {"mask": {"window": (None, 2**70)}}),
    ("causal", CONFIG, {"mask": {"causal": "yes"}}),
    ("causal", CONFIG, {"mask": {"causal": 1}}),
    ("window", CONFIG, {"mask": {"window": (-1, 0)}}),
    ("window", CONFIG, {"mask": {"window": (0, -2)}}),
    ("window", CONFIG, {"mask": {"window": (0.5, 0)}}),
    ("window", CONFIG, {"mask": {"window": (1,)}}),
    ("window", CONFIG, {"mask": {"window": 3}}),
    ("sinks", SHAPE, {"sinks": np.zeros(2)}),
    ("sinks", SHAPE, {"sinks": np.zeros((4, 1))}),
    ("sinks", DTYPE, {"sinks": np.zeros(4, np.float32)}),
    ("softcap", CONFIG, {"softcap": 0}),
    ("softcap", CONFIG, {"softcap": -1.0}),
    ("softcap", CONFIG, {"softcap": np.inf}),
    ("softcap", CONFIG, {"softcap": "2"}),
    ("scale", CONFIG, {"scale": np.nan}),
    ("scale", CONFIG, {"scale": -np.inf}),
    ("scale", CONFIG, {"scale": True}),
]


def refuse(lib: Backend, code: str, argument: str, call) -> None:
    with pytest.raises(lib.api.AttentionError) as caught:
        call()
    assert caught.value.code == code
    assert re.fullmatch(rf"\w+: {argument}: expected .+, got .+", str(caught.value)), caught.value


@pytest.mark.parametrize(("argument", "code", "change"), SDPA, ids=str)
def test_sdpa(lib, argument, code, change):
    refuse(lib, code, argument, lambda: sdpa(lib, **change))


def test_the_good_call(lib):
    assert tuple(sdpa(lib).shape) == (2, 4, 3, 7)
    assert tuple(sdpa(lib, mask={"q_offset": np.int64(2).item(), "window": [1, None]}).shape) == (2, 4, 3, 7)


def test_scalars_of_numpy_are_numbers(lib):
    sdpa(
        lib,
        scale=np.float32(1),
        softcap=np.float64(2),
        mask={"q_offset": np.int64(1), "window": (np.int32(1), 0)},
    )


def test_softmax(lib):
    refuse(lib, SHAPE, "x", lambda: lib.api.softmax(lib.array(1.0)))
    refuse(lib, DTYPE, "x", lambda: lib.api.softmax(lib.array([1], INT)))
    refuse(lib, DTYPE, "sink", lambda: lib.api.softmax_lse(lib.array([1.0]), lib.array(1, "float32")))
    refuse(lib, SHAPE, "sink", lambda: lib.api.softmax_lse(zeros(lib, 2, 3), zeros(lib, 3)))


@pytest.mark.parametrize("offset", [2**70, -(2**70), 2**63 - 1], ids=str)
def test_rope_beyond_the_farthest_position(lib, offset):
    refuse(lib, CONFIG, "offset", lambda: lib.api.rope(zeros(lib, 1, 1, 2, 4), lib.api.Rope(offset=offset)))


def far_calls():
    """Calls of NumPy's alone with an integer that 64 bits do not hold."""
    far, x = 2**70, np.zeros((1, 1, 2, 4))
    dynamic = ra.Rope(scaling=ra.DynamicScaling(2.0, 4, far))
    return [
        ("q_offset", lambda: ra.alibi(x, q_offset=far)),
        ("q_offset", lambda: ra.relative_bias(x, np.zeros((4, 1)), q_offset=-far)),
        ("max_distance", lambda: ra.relative_bias(x, np.zeros((4, 1)), max_distance=far)),
        ("offset", lambda: ra.sinusoidal(x[0], offset=far)),
        ("length", lambda: ra.rope(x, dynamic)),
        ("group", lambda: ra.quantise(x, "int8", far)),
        ("group", lambda: ra.QuantisedCache(1, 1, 4, format="int8", group=far)),
        ("window", lambda: ra.RotatingCache(1, 1, 4, window=far)),
        ("stride", lambda: ra.sparse(x, x, x, ra.Strided(far))),
        ("left", lambda: ra.sparse(x, x, x, ra.Window(far, 0))),
        ("tokens", lambda: ra.sparse(x, x, x, ra.Global(1, 1, [far]))),
        ("block_q", lambda: ra.flash(x, x, x, block_q=far)),
        ("capacity", lambda: ra.KVCache(1, 1, 4, capacity=far)),
        ("capacity", lambda: ra.LatentCache(1, 3, 1, capacity=2**62)),
    ]


@pytest.mark.parametrize(("argument", "call"), far_calls())
def test_an_integer_that_64_bits_do_not_hold(argument, call):
    with pytest.raises(ra.InvalidConfig, match=f": {argument}: expected .+, got"):
        call()


NUMBERS = {
    "scale": lambda api, x, n: api.sdpa(x, x, x, scale=n),
    "softcap": lambda api, x, n: api.sdpa(x, x, x, softcap=n),
    "base": lambda api, x, n: api.rope(x, api.Rope(base=n)),
    "factor": lambda api, x, n: api.rope(x, api.Rope(scaling=api.LinearScaling(n))),
    "attention_factor": lambda api, x, n: api.rope(
        x, api.Rope(scaling=api.YarnScaling(2.0, 4, attention_factor=n))
    ),
    "eps": lambda api, x, n: api.layer_norm(x, x[0, 0, 0], x[0, 0, 0], eps=n),
    "p": lambda api, x, n: api.sdpa(x, x, x, dropout=api.Dropout(n, 1)),
    "alpha": lambda api, x, n: api.swiglu(x, x, alpha=n),
}


@pytest.mark.parametrize("n", [2**63, 10**400], ids=["2^63", "10^400"])
@pytest.mark.parametrize("argument", NUMBERS)
def test_a_number_that_is_an_integer_that_64_bits_do_not_hold(lib, argument, n):
    refuse(lib, CONFIG, argument, lambda: NUMBERS[argument](lib.api, zeros(lib, 1, 1, 2, 4), n))


def test_the_name_of_an_element_type_is_its_own():
    for _ in range(2):  # made, and remembered
        for name in ("float32", "float64", "float16", "int64", "bool"):
            assert dtype_name(np.zeros(1, name)) == name
            assert dtype_name(SimpleNamespace(dtype=name)) == name
        assert dtype_name(np.zeros(1, ml_dtypes.bfloat16)) == "bfloat16"
        assert dtype_name(np.zeros(1, ">f4")) == ">f4"
        assert dtype_name(np.zeros(1, "longlong")) == "int64"
        assert dtype_name(1.0) == "float"
        assert dtype_name(True) == "bool"
        assert dtype_name(None) == "NoneType"


def test_feed_forward_of_no_axis(lib):
    layer = lib.api.FeedForward(zeros(lib, 4, 2), zeros(lib, 2, 4))
    refuse(lib, SHAPE, "x", lambda: layer(zeros(lib)))


def test_visible(lib):
    refuse(lib, SHAPE, "mask", lambda: lib.api.visible(lib.mask(keep=[True, True]), 1, 1, 2, 3))
    refuse(lib, CONFIG, "kv_lengths", lambda: lib.api.visible(lib.mask(kv_lengths=[4]), 1, 1, 2, 3))


WEIGHTS = {"w_q": (8, 6), "w_k": (4, 5), "w_v": (6, 5), "w_o": (7, 12)}  # Hq 4, Hkv 2, D 2, Dv 3, C 6, Cc 5
MHA = [
    ("num_heads", CONFIG, {"num_heads": 0}),
    ("num_heads", CONFIG, {"num_heads": 2.0}),
    ("num_kv_heads", CONFIG, {"num_kv_heads": 3}),
    ("num_kv_heads", CONFIG, {"num_kv_heads": 0}),
    ("num_kv_heads", CONFIG, {"num_kv_heads": 8}),
    ("w_q", SHAPE, {"w_q": (9, 6)}),
    ("w_q", SHAPE, {"w_q": (8, 5)}),
    ("w_q", SHAPE, {"w_q": (8,)}),
    ("w_k", SHAPE, {"w_k": (6, 5)}),
    ("w_k", SHAPE, {"w_k": (4, 6)}),
    ("w_v", SHAPE, {"w_v": (7, 5)}),
    ("w_v", SHAPE, {"w_v": (6, 6)}),
    ("w_o", SHAPE, {"w_o": (7, 8)}),
    ("b_q", SHAPE, {"b_q": (6,)}),
    ("b_o", SHAPE, {"b_o": (12,)}),
    ("x", SHAPE, {"x": (3, 6)}),
    ("context", SHAPE, {"context": (2, 4, 4, 5)}),
    ("context", SHAPE, {"context": (1, 4, 5)}),
    ("w_v", DTYPE, {"dtypes": {"w_v": "float32"}}),
    ("b_k", DTYPE, {"b_k": (4,), "dtypes": {"b_k": "float32"}}),
    ("context", DTYPE, {"dtypes": {"context": "float32"}}),
    ("x", DTYPE, {"dtypes": {"x": INT}}),
    ("bias", SHAPE, {"bias": np.zeros((4, 3))}),
    ("mask", DTYPE, {"mask": {"keep": np.zeros((3, 4))}}),
    ("kv_lengths", CONFIG, {"mask": {"kv_lengths": [5, 0]}}),
    ("softcap", CONFIG, {"softcap": 0.0}),
    ("scale", CONFIG, {"scale": np.inf}),
]


def mha(
    lib, *, x=(2, 3, 6), context=(2, 4, 5), dtypes=None, num_heads=4, num_kv_heads=2, mask=None, **changes
):
    dtypes = dtypes or {}
    options = {
        name: lib.convert(changes.pop(name)) for name in ("bias", "scale", "softcap") if name in changes
    }
    shapes = WEIGHTS | changes
    weights = {name: zeros(lib, *shape, dtype=dtypes.get(name, "float64")) for name, shape in shapes.items()}
    layer = lib.api.MultiHeadAttention(**weights, num_heads=num_heads, num_kv_heads=num_kv_heads)
    x = zeros(lib, *x, dtype=dtypes.get("x", "float64"))
    context = zeros(lib, *context, dtype=dtypes.get("context", "float64"))
    return layer(x, context, mask=lib.mask(**mask or {}), **options)


@pytest.mark.parametrize(("argument", "code", "change"), MHA, ids=str)
def test_mha(lib, argument, code, change):
    refuse(lib, code, argument, lambda: mha(lib, **change))


def test_the_good_layer(lib):
    assert tuple(mha(lib, b_q=(8,), b_k=(4,), b_v=(6,), b_o=(7,)).shape) == (2, 3, 7)


@pytest.mark.parametrize(
    ("argument", "sizes"),
    [
        ("batch", (-1, 1, 1)),
        ("batch", (1.0, 1, 1)),
        ("num_kv_heads", (1, 0, 1)),
        ("head_dim", (1, 1, 0)),
        ("value_dim", (1, 1, 1, -1)),
        ("capacity", (1, 1, 1, 1, -1)),
        ("capacity", (1, 1, 1, 1, "8")),
        ("capacity", (2**27, 1, 1, 1, 2**27)),
        ("capacity", (2**62, 1, 1)),
    ],
    ids=str,
)
def test_cache_sizes(lib, argument, sizes):
    capacity = {"capacity": sizes[4]} if len(sizes) > 4 else {}
    refuse(lib, CONFIG, argument, lambda: lib.cache(*sizes[:4], **capacity))


def test_cache_of_no_float_type(lib):
    refuse(lib, DTYPE, "dtype", lambda: lib.cache(1, 1, 1, dtype=INT))


def cache_steps(lib: Backend):
    """Every way a step can fail, on a cache of (2, 2, D 3, Dv 4) with lengths [2, 1] and a capacity of 4."""

    def k(*shape, dtype="float64"):
        return zeros(lib, *(shape or (2, 2, 1, 3)), dtype=dtype)

    def v(*shape, dtype="float64"):
        return zeros(lib, *(shape or (2, 2, 1, 4)), dtype=dtype)

    def lengths(values, dtype=INT):
        return lib.array(values, dtype)

    return [
        (SHAPE, "k", lambda c: c.append(k(2, 2, 3), v())),
        (SHAPE, "v", lambda c: c.append(k(), v(2, 1, 4))),
        (SHAPE, "k", lambda c: c.append(k(1, 2, 1, 3), v())),
        (SHAPE, "k", lambda c: c.append(k(2, 4, 1, 3), v())),
        (SHAPE, "k", lambda c: c.append(k(2, 2, 1, 4), v())),
        (SHAPE, "v", lambda c: c.append(k(), v(2, 2, 2, 4))),
        (SHAPE, "v", lambda c: c.append(k(), v(2, 2, 1, 3))),
        (DTYPE, "k", lambda c: c.append(k(dtype="float32"), v())),
        (DTYPE, "v", lambda c: c.append(k(), v(dtype="float32"))),
        (SHAPE, "lengths", lambda c: c.append(k(), v(), lengths([1]))),
        (DTYPE, "lengths", lambda c: c.append(k(), v(), lengths([1, 1], "float64"))),
        (CONFIG, "lengths", lambda c: c.append(k(), v(), lengths([1, 2]))),
        (CONFIG, "lengths", lambda c: c.append(k(), v(), lengths([-1, 1]))),
        (CAPACITY, "k", lambda c: c.append(k(2, 2, 3, 3), v(2, 2, 3, 4))),
        (CAPACITY, "k", lambda c: c.append(k(2, 2, 3, 3), v(2, 2, 3, 4), lengths([3, 0]))),
        (SHAPE, "q", lambda c: c.attend(k(2, 1, 3))),
        (SHAPE, "q", lambda c: c.attend(k(2, 3, 1, 3))),
        (SHAPE, "k", lambda c: c.attend(k(2, 2, 1, 4))),
        (SHAPE, "k", lambda c: c.attend(k(1, 2, 1, 3))),
        (DTYPE, "q", lambda c: c.attend(k(dtype=INT))),
        (DTYPE, "[qk]", lambda c: c.attend(k(dtype="float32"))),
        (CONFIG, "kv_lengths", lambda c: c.attend(k(), mask=lib.mask(kv_lengths=[1, 1]))),
        (SHAPE, "mask", lambda c: c.attend(k(), mask=lib.mask(keep=[True, True, True]))),
        (SHAPE, "bias", lambda c: c.attend(k(), bias=zeros(lib, 3))),
        (SHAPE, "q_offset", lambda c: c.attend(k(), mask=lib.mask(q_offset=[1]))),
        (CONFIG, "window", lambda c: c.attend(k(), mask=lib.mask(window=(-1, None)))),
        (CONFIG, "softcap", lambda c: c.attend(k(), softcap=0)),
        (SHAPE, "lengths", lambda c: c.truncate([1])),
        (CONFIG, "lengths", lambda c: c.truncate([1, 2])),
        (CONFIG, "lengths", lambda c: c.truncate([-1, 0])),
        (CONFIG, "lengths", lambda c: c.truncate([1.0, 0])),
    ]


def test_a_failed_step_of_a_cache_changes_nothing(lib):
    rng = np.random.default_rng(0)
    cache = lib.cache(2, 2, 3, 4, capacity=4)
    cache.append(
        lib.array(rng.standard_normal((2, 2, 2, 3))),
        lib.array(rng.standard_normal((2, 2, 2, 4))),
        lib.array([2, 1], INT),
    )
    before = [lib.to_numpy(x) for x in cache.read()]
    for code, argument, step in cache_steps(lib):
        refuse(lib, code, argument, lambda step=step: step(cache))
        for x, y in zip(before, cache.read(), strict=True):
            np.testing.assert_array_equal(x, lib.to_numpy(y))


def test_codes_are_the_closed_set(lib):
    names = ("ShapeMismatch", "DtypeMismatch", "InvalidConfig", "CapacityExceeded", "Unsupported")
    assert {getattr(lib.api, name).code for name in names} == {SHAPE, DTYPE, CONFIG, CAPACITY, "unsupported"}
    assert issubclass(lib.api.AttentionError, ValueError)


@pytest.mark.parametrize("make", [ra.KVCache, ra.PerHeadCache], ids=lambda make: make.__name__)
def test_a_capacity_beyond_the_memory(make: type[ra.KVCache]) -> None:
    with pytest.raises(ra.InvalidConfig, match="memory"):
        make(1, 1, 64, capacity=2**46)
    with pytest.raises(ra.InvalidConfig, match="memory"):
        ra.PagePool(2**40, 64, 1, 64)
