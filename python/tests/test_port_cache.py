"""The op `kv_cache` of a port: scripts of steps."""

import numpy as np
import pytest
from ports import APPEND, ATTEND, CACHE, column, load

INF = np.inf


def script(driver, steps, arrays=None, config=None, **fields):
    arrays = {"q": column([0]), "k": column([1, 1]), "v": column([2, 4])} | (arrays or {})
    return driver.run("kv_cache", arrays, config=CACHE | {"steps": steps} | (config or {}), **fields)


def test_writes_what_its_steps_name(driver):
    steps = [APPEND, ATTEND | {"lse": "b"}, {"do": "read", "out": "r"}]
    assert script(driver, steps)["steps"] == ["ok"] * 3
    written = load(driver.outputs)
    assert sorted(written) == ["a", "b", "r.k", "r.lengths", "r.v"]
    assert written["a"].item() == 3
    assert written["r.lengths"].tolist() == [2]
    assert written["r.lengths"].dtype == np.int64
    script(driver, steps, want=["r.v", "a"])
    assert sorted(load(driver.outputs)) == ["a", "r.v"]


def test_a_failed_step_writes_nothing_and_the_script_goes_on(driver):
    steps = [
        APPEND,
        {"do": "append", "k": "wide", "v": "v"},
        {"do": "append", "k": "k", "v": "absent"},
        {"do": "append", "k": "k"},
        APPEND,
        ATTEND | {"out": "bad", "softcap": -1},
        ATTEND | {"out": "worse", "causal": "yes"},
        {"do": "truncate", "lengths": [3]},
        {"do": "truncate", "lengths": 1},
        {"do": "truncate"},
        {"do": "read"},
        ATTEND,
    ]
    answer = script(driver, steps, {"wide": np.zeros((1, 1, 2, 3), np.float32)}, {"capacity": 3})
    assert answer["steps"] == [
        "ok",
        "shape_mismatch",
        "invalid_request",
        "invalid_request",
        "capacity_exceeded",
        "invalid_config",
        "invalid_config",
        "invalid_config",
        "invalid_config",
        "invalid_config",
        "invalid_request",
        "ok",
    ]
    written = load(driver.outputs)
    assert written.keys() == {"a"}
    assert written["a"].item() == 3


def test_offsets_lengths_mask_and_bias(driver):
    arrays = {
        "n": np.int64([1]),
        "o": np.int64([0]),
        "m": np.array([False, True]),
        "b": np.float32([0, -INF]),
    }
    steps = [
        APPEND,
        ATTEND | {"out": "o1", "causal": True, "q_offset": "o"},
        ATTEND | {"out": "o2", "causal": True, "q_offset": 0},
        ATTEND | {"out": "m", "mask": "m"},
        ATTEND | {"out": "b", "bias": "b"},
        {"do": "reset"},
        APPEND | {"lengths": "n"},
        ATTEND | {"out": "n"},
        ATTEND | {"out": "bad", "mask": "absent"},
        ATTEND | {"out": "bad", "q_offset": 0.5},
    ]
    answer = script(driver, steps, arrays)
    assert answer["steps"] == ["ok"] * 8 + ["invalid_request", "invalid_config"]
    written = {name: x.item() for name, x in load(driver.outputs).items()}
    assert written == {"o1": 2, "o2": 2, "m": 4, "b": 2, "n": 2}


def test_wants_only_what_a_step_may_write(driver):
    steps = [APPEND | {"out": "x"}, ATTEND, ATTEND | {"out": "bad", "softcap": 0}]
    assert script(driver, steps, want=["a", "bad"])["status"] == "ok"
    assert load(driver.outputs).keys() == {"a"}
    driver.outputs.unlink()
    for name in ("x", "output", "r.k"):
        driver.refused(script(driver, steps, want=[name]), "invalid_request")


def test_an_integer_may_be_written_with_a_point(driver):
    steps = [APPEND, {"do": "truncate", "lengths": [1.0]}, ATTEND | {"q_offset": 0.0}]
    assert script(driver, steps, config={"batch": 1.0, "capacity": 2.0})["steps"] == ["ok"] * 3
    assert load(driver.outputs)["a"].item() == 2


def test_each_run_starts_afresh(driver):
    for _ in range(2):
        script(driver, [APPEND, ATTEND])
        assert load(driver.outputs)["a"].item() == 3


@pytest.mark.parametrize(
    ("code", "config"),
    [
        ("kind.tree", {"kind": "tree"}),
        ("kind.1", {"kind": 1}),
        ("step.prune", {"steps": [APPEND, {"do": "prune"}]}),
        ("invalid_request", {"steps": [{"k": "k"}]}),
        ("invalid_request", {"steps": {"do": "reset"}}),
        ("invalid_config", {"batch": -1}),
        ("invalid_config", {"head_dim": 0}),
        ("invalid_config", {"capacity": 1.5}),
        ("invalid_config", {"num_kv_heads": "1"}),
    ],
    ids=str,
)
def test_refuses_the_whole_script(driver, code, config):
    driver.refused(script(driver, [], config=config), code)


def test_refuses_to_want_what_no_step_writes(driver):
    driver.refused(script(driver, [APPEND, ATTEND], want=["a", "b"]), "invalid_request")


def test_has_the_dtype_of_the_first_append(driver):
    wide = {name: column([1, 2]).astype(np.float64) for name in ("k", "v", "q")}
    assert script(driver, [APPEND, ATTEND], wide)["steps"] == ["ok", "ok"]
    assert load(driver.outputs)["a"].dtype == np.float64
    answer = script(driver, [APPEND, ATTEND], {"q": wide["q"]})
    assert answer["steps"] == ["ok", "dtype_mismatch"]
