"""The op `kv_cache` of a port: policies, weights that are tracked, keys by channel, and heads of their own."""

import numpy as np
import pytest
from ports import APPEND, ATTEND, CACHE, Driver, column, libraries, load

from rosetta_port import numpy_port

READ, STATS = {"do": "read", "out": "r"}, {"do": "stats", "out": "s"}
NORM = {"type": "key_norm", "budget": 1}
ARRAYS = {"q": column([0]), "k": column([3, 1, 2]), "v": column([2, 4, 9])}
OK, BAD, REQUEST = "ok", "invalid_config", "invalid_request"


def script(driver, *steps, arrays=None, **config):
    return driver.run("kv_cache", ARRAYS | (arrays or {}), config=CACHE | config | {"steps": list(steps)})


def evict(**policy):
    return {"do": "evict", "policy": policy}


def test_claims():
    claimed = set(numpy_port.LIBRARY.ops()["kv_cache"]["features"])
    assert claimed >= {f"evict_{name}" for name in ("window", "heavy_hitters", "snapkv", "key_norm")}
    assert claimed >= {"track", "tracked", "rope_at", "key_groups", "per_head", "budget_list"}


@pytest.mark.parametrize(
    ("policy", "stays"),
    [
        ({"type": "window", "budget": 2, "sinks": 1}, [0, 2]),
        ({"type": "window", "budget": 2.0, "recent": None}, [1, 2]),
        ({"type": "key_norm", "budget": 1}, [1]),
        ({"type": "key_norm", "budget": 2, "recent": 1, "sinks": None}, [1, 2]),
        ({"type": "snapkv", "budget": 1, "q": "one", "scale": -1, "pool": 1}, [1]),
        ({"type": "snapkv", "budget": 2, "q": "one", "pool": 3.0}, [0, 1]),
        ({"type": "heavy_hitters", "budget": 1}, [2]),
    ],
    ids=str,
)
def test_policies(port, policy, stays):
    arrays = {"one": column([1]), "m": np.array([False, False, True])}
    steps = [APPEND, ATTEND | {"mask": "m"}, evict(**policy), READ | {"positions": True, "tracked": True}]
    assert script(port, *steps, arrays=arrays, track=True)["steps"] == [OK] * 4
    written = load(port.outputs)
    assert written["r.positions"].tolist() == [stays]
    assert written["r.tracked"].dtype == np.float64
    assert written["r.tracked"].ravel().tolist() == [float(j == 2) for j in stays]


def test_policies_that_fail_their_step(port):
    steps = {
        "both": ({"do": "evict", "positions": [0], "policy": NORM}, BAD),
        "neither": ({"do": "evict"}, REQUEST),
        "null": ({"do": "evict", "policy": None}, REQUEST),
        "number": ({"do": "evict", "policy": 2}, BAD),
        "list": ({"do": "evict", "policy": [NORM]}, BAD),
        "no type": (evict(budget=1), REQUEST),
        "number as type": (evict(type=5, budget=1), BAD),
        "no budget": (evict(type="window"), REQUEST),
        "budget": (evict(type="window", budget="1"), BAD),
        "list of budgets": (evict(type="window", budget=[1]), BAD),
        "recent": (evict(type="window", budget=1, recent=0), BAD),
        "sinks": (evict(type="key_norm", budget=1, sinks=True), BAD),
        "protected": (evict(type="key_norm", budget=1, sinks=2), BAD),
        "untracked": (evict(type="heavy_hitters", budget=9), BAD),
        "no q": (evict(type="snapkv", budget=1), REQUEST),
        "absent q": (evict(type="snapkv", budget=1, q="z"), REQUEST),
        "q": (evict(type="snapkv", budget=1, q=[0]), REQUEST),
        "shape": (evict(type="snapkv", budget=1, q="flat"), "shape_mismatch"),
        "dtype": (evict(type="snapkv", budget=1, q="wide"), "dtype_mismatch"),
        "pool": (evict(type="snapkv", budget=1, q="q", pool=2), BAD),
        "scale": (evict(type="snapkv", budget=1, q="q", scale="1"), BAD),
        "tracked": (READ | {"tracked": True}, BAD),
        "cache": (evict(**NORM) | {"cache": "b"}, BAD),
    }
    arrays = {"flat": np.zeros(1, "f"), "wide": ARRAYS["q"].astype(float)}
    answer = script(port, APPEND, *(step for step, _ in steps.values()), READ, arrays=arrays)
    assert dict(zip(steps, answer["steps"][1:-1], strict=True)) == {
        name: code for name, (_, code) in steps.items()
    }
    assert load(port.outputs)["r.lengths"].tolist() == [3]


@pytest.mark.parametrize(
    ("code", "config"),
    [
        ("policy.random", {"steps": [evict(type="random", budget=1)]}),
        ("policy.random", {"steps": [evict(type="random"), APPEND]}),
        ("step.truncate", {"kind": "per_head", "steps": [{"do": "truncate", "lengths": [0]}]}),
        ("step.evict", {"kind": "rotating", "window": 2, "steps": [evict(**NORM)]}),
        (BAD, {"track": 1}),
        (BAD, {"kind": "per_head", "track": "true"}),
        (BAD, {"rope_at": "attend"}),
        (BAD, {"head_dim": 2, "rope": {}, "rope_at": "late"}),
        (BAD, {"head_dim": 2, "rope": {}, "rope_at": True}),
        *((BAD, {"kind": "quantised", "format": "int8", "key_groups": n}) for n in (0, 1.5, True, [2])),
        (BAD, {"kind": "quantised", "format": "f16", "key_groups": 2}),
        (REQUEST, {"kind": "quantised", "key_groups": 2}),
    ],
    ids=str,
)
def test_refuses_the_whole_script(port, code, config):
    port.refused(port.run("kv_cache", ARRAYS, config=CACHE | {"steps": []} | config), code)


def test_fields_that_a_kind_does_not_have_are_ignored(port):
    for config in ({"kind": "rotating", "window": 2, "track": 5, "key_groups": 0}, {"key_groups": "x"}):
        assert script(port, APPEND, ATTEND, **config)["steps"] == [OK, OK]


@pytest.mark.parametrize("library", libraries()[1:], ids=lambda library: library.name)
def test_torch_says_what_it_lacks(tmp_path, library):
    driver = Driver(library, tmp_path)
    claimed = set(library.ops()["kv_cache"]["features"])
    assert not claimed & {
        "track",
        "tracked",
        "key_groups",
        "per_head",
        "budget_list",
        "evict_window",
    }
    for feature, config in (
        ("kind.per_head", {"kind": "per_head"}),
        ("kind.quantised", {"kind": "quantised", "format": "int8", "key_groups": 2}),
        ("track", {"track": True}),
    ):
        driver.refused(script(driver, **config), feature)


def test_keys_in_groups(port):
    arrays = {"k": column([254, 3, 7]), "v": column([1, 2, 4])}
    steps = [APPEND, READ | {"codes": True}, STATS]
    config = {"kind": "quantised", "format": "int8", "key_groups": 2}
    assert script(port, *steps, arrays=arrays, **config)["steps"] == [OK] * 3
    written = load(port.outputs)
    assert written["r.k"].ravel().tolist() == [254, 4, 7]
    assert written["r.k_codes"].ravel().tolist() == [127, 2, 0]
    assert (written["r.k_scale"].tolist(), written["r.k_tail"].tolist()) == ([[[[2]]]], [[[[7]]]])
    assert written["s.bytes"].tolist() == [2 + 4 + 4 + 3 * 5]


def test_heads_of_their_own(port):
    arrays = {"q": np.zeros((1, 2, 1, 1), "f"), "k": np.float32([[[[3], [1]], [[1], [3]]]])}
    arrays["v"] = 4 * arrays["k"]
    steps = [APPEND, evict(type="key_norm", budget=[1, 0]), READ | {"positions": True}, STATS, ATTEND]
    steps += [{"do": "save", "file": "f"}, {"do": "reset"}, {"do": "load", "file": "f"}, READ | {"out": "t"}]
    assert script(port, *steps, arrays=arrays, kind="per_head", num_kv_heads=2)["steps"] == [OK] * 9
    written = load(port.outputs)
    assert written["r.lengths"].tolist() == written["s.positions"].tolist() == [[1, 0]]
    assert written["r.positions"].tolist() == [[[1], [-1]]]
    assert (written["a"].ravel().tolist(), written["s.bytes"].tolist()) == ([4, 0], [8])
    assert written["t.k"].tolist() == written["r.k"].tolist() == [[[[1]], [[0]]]]


def test_queries_give_a_cache_without_a_type_theirs(port):
    wide = {name: ARRAYS[name].astype(float) for name in ("q", "k", "v")}
    answer = script(port, evict(type="snapkv", budget=1, q="q"), APPEND, ATTEND, arrays=wide)
    assert answer["steps"] == [OK] * 3
    mixed = {"q": wide["q"]}
    assert script(port, evict(type="snapkv", budget=1, q="q"), APPEND, arrays=mixed)["steps"] == [OK, OK]
