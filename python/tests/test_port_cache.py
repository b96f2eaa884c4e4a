"""The op `kv_cache` of a port: scripts of steps."""

from dataclasses import replace

import numpy as np
import pytest
from ports import APPEND, ATTEND, CACHE, Driver, column, load

from rosetta_port import CacheRung, numpy_port
from rosetta_port.errors import Unsupported

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


# Steps before the clock starts


def bench(driver, steps, **config):
    arrays = {"q": column([0]), "k": column([1, 1]), "v": column([2, 4])}
    driver.outputs.unlink(missing_ok=True)
    return driver.ask(
        cmd="bench",
        op="kv_cache",
        inputs=driver.inputs(**arrays),
        outputs=str(driver.outputs),
        config=CACHE | {"steps": steps} | config,
        samples=2,
        warmup=1,
    )


def test_what_is_untimed_happens_once(driver):
    steps = [APPEND, APPEND, ATTEND, {"do": "stats", "out": "s"}]
    answer = bench(driver, steps, untimed=2, capacity=4)
    assert answer["status"] == "ok", answer
    assert answer["steps"] == ["ok"] * 4
    assert len(answer["samples_ns"]) == 2
    written = load(driver.outputs)
    assert (written["a"].item(), written["s.positions"].tolist()) == (3, [4])
    assert bench(driver, steps, untimed=0)["status"] == "ok"
    assert (
        script(driver, [APPEND, ATTEND], config={"untimed": 99})["status"] == "ok"
    )  # run does not look at it


def test_only_steps_that_change_nothing_are_done_again(driver):
    for untimed in (3, -1, 0.5, "1"):
        driver.refused(bench(driver, [APPEND, ATTEND], untimed=untimed), "invalid_config")
    driver.refused(bench(driver, [APPEND, ATTEND, APPEND], untimed=1), "invalid_config")


# A rung of attends


@pytest.fixture
def rung(tmp_path):
    """A port whose cache has a second rung, which does no cache without a capacity; and what went through it."""
    went = []

    def check(cache):
        if cache.capacity is None:
            raise Unsupported("grow")

    def attend(cache, q, **options):
        went.append("attend")
        steps = cache.attend_steps(q, **options)
        return steps.output, steps.lse

    def append_attend(cache, k, v, q, **options):
        went.append("append_attend")
        steps = cache.append_attend(k, v, q, **options)
        return steps.output, steps.lse

    variants = {"quick": CacheRung(check, attend, append_attend)}
    return Driver(replace(numpy_port.LIBRARY, cache_variants=variants), tmp_path), went


def test_attends_of_a_script_go_through_the_rung_that_is_asked_for(rung):
    driver, went = rung
    assert driver.port.library.ops()["kv_cache"]["variants"] == ["naive", "quick"]
    steps = [APPEND, ATTEND | {"lse": "l"}, APPEND | ATTEND | {"do": "append_attend", "out": "b"}]
    sized = {"capacity": 4}
    assert script(driver, steps, config=sized)["steps"] == ["ok"] * 3
    first = load(driver.outputs)
    assert not went
    assert script(driver, steps, config=sized, variant="quick")["steps"] == ["ok"] * 3
    again = load(driver.outputs)
    assert went == ["attend", "append_attend"]
    assert {name: x.tolist() for name, x in first.items()} == {name: x.tolist() for name, x in again.items()}


def test_what_the_rung_does_not_do_is_refused_before_any_step(rung):
    driver, went = rung
    steps = [APPEND, {"do": "save", "file": "x.safetensors"}, ATTEND]
    driver.refused(script(driver, steps, variant="quick"), "grow")
    assert not went
    assert not (driver.folder / "x.safetensors").exists()
    driver.refused(script(driver, steps, variant="other"), "variant.other")
