"""The op `kv_cache` of a port: kinds of caches, and steps that came after the first five."""

import numpy as np
import pytest
from ports import APPEND, ATTEND, CACHE, Driver, column, libraries, load

READ, STATS = {"do": "read", "out": "r"}, {"do": "stats", "out": "s"}
KINDS = {
    "contiguous": {},
    "rotating": {"window": 8},
    "paged": {"page_size": 2, "num_pages": 8},
    "quantised": {"format": "int8"},
    "cross": {},
    "per_head": {},
}
ARRAYS = {"q": column([0]), "k": column([1, 1]), "v": column([2, 4]), "t": np.int64([[5, 6]])}


def script(driver, kind, *steps, arrays=None, **config):
    config = CACHE | {"kind": kind} | KINDS.get(kind, {}) | config | {"steps": list(steps)}
    return driver.run("kv_cache", ARRAYS | (arrays or {}), config=config)


@pytest.mark.parametrize("library", libraries()[1:], ids=lambda library: library.name)
def test_torch_says_what_it_lacks(tmp_path, library):
    driver = Driver(library, tmp_path)
    claimed = set(driver.port.library.ops()["kv_cache"]["features"])
    assert claimed >= {"paged", "fork", "rope", "positions", "append_padding", "tokens", "stats"}
    assert not claimed & {"rotating", "quantised", "latent", "cross", "evict", "shift", "save", "load"}
    for feature, kind, steps, config in (
        ("kind.rotating", "rotating", [APPEND], {}),
        ("kind.quantised", "quantised", [APPEND], {}),
        ("step.evict", "contiguous", [APPEND, {"do": "evict", "positions": [0]}], {}),
        ("step.shift", "paged", [APPEND, {"do": "shift", "by": 1, "from": 0}], {}),
        ("step.save", "contiguous", [APPEND, {"do": "save", "file": "f"}], {}),
        ("step.load", "paged", [{"do": "load", "file": "f"}], {}),
    ):
        driver.refused(script(driver, kind, *steps, **config), feature)


def test_claims_are_those_of_the_protocol(port):
    claimed = set(port.port.library.ops()["kv_cache"]["features"])
    assert claimed >= set(KINDS) | {
        "latent",
        "f16",
        "bf16",
        "int8",
        "int4",
        "fp8_e4m3",
        "zero_point",
        "group",
    }
    assert claimed >= {
        "append_padding",
        "tokens",
        "append_attend",
        "reorder",
        "fork",
        "drop",
        "evict",
        "shift",
    }
    assert claimed >= {"save", "load", "stats", "codes", "positions", "rope"}


@pytest.mark.parametrize("kind", KINDS)
def test_forks_have_names(port, kind):
    steps = [
        APPEND,
        {"do": "fork", "into": "b"},
        {"do": "reset", "cache": "b"},
        ATTEND,
        ATTEND | {"cache": "b", "out": "b"},
        ATTEND | {"cache": "c"},
        {"do": "fork", "into": "b"},
        {"do": "fork"},
        {"do": "drop"},
        ATTEND,
        {"do": "fork", "cache": "b", "into": "main"},
        ATTEND | {"out": "again"},
        STATS,
    ]
    answer = script(port, kind, *steps)
    bad = "invalid_config"
    wanted = ["ok"] * 5 + [bad, bad, "invalid_request", "ok", bad, "ok", "ok", "ok"]
    assert answer["steps"] == wanted
    written = load(port.outputs)
    assert [written[name].item() for name in ("a", "b", "again")] == [3, 0, 0]
    assert written["s.positions"].ravel().tolist() == [0]
    assert written["s.bytes"].tolist() == [0]
    if kind == "paged":
        assert written["s.pages"].tolist() == [0, 0, 8]


@pytest.mark.parametrize("kind", KINDS)
def test_saves_beside_the_outputs_and_goes_on(port, kind):
    file = {"file": "c.safetensors"}
    saved = script(port, kind, APPEND, {"do": "save"} | file)
    assert saved["steps"] == ["ok", "ok"]
    assert (port.folder / "c.safetensors").exists()
    steps = [{"do": "load"} | file, ATTEND, {"do": "load", "file": "absent"}, {"do": "load"}, READ]
    answer = script(port, kind, *steps)
    assert answer["steps"] == ["ok", "ok", "invalid_request", "invalid_request", "ok"]
    assert load(port.outputs)["a"].item() == 3
    script(port, kind, {"do": "save", "file": str(port.folder / "absolute")})
    assert (port.folder / "absolute").exists()


def test_a_cache_without_a_type_takes_that_of_the_file(port):
    wide = {name: ARRAYS[name].astype(np.float64) for name in ("q", "k", "v")}
    file = {"file": "c"}
    assert script(port, "contiguous", APPEND, {"do": "save"} | file, arrays=wide)["steps"] == ["ok", "ok"]
    answer = script(port, "contiguous", {"do": "load"} | file, READ, ATTEND)
    assert answer["steps"] == ["ok", "ok", "dtype_mismatch"]
    assert load(port.outputs)["r.k"].dtype == np.float64
    answer = script(port, "contiguous", APPEND, {"do": "load"} | file, ATTEND)
    assert answer["steps"] == ["ok", "dtype_mismatch", "ok"]
    answer = script(port, "rotating", {"do": "load"} | file, APPEND, ATTEND)
    assert answer["steps"] == ["invalid_config", "ok", "ok"]


def test_the_first_append_that_is_ok_gives_the_type(port):
    wide = {"x": ARRAYS["k"].astype(np.float64)}
    steps = [APPEND | {"v": "x"}, {"do": "append", "k": "x", "v": "x"}, APPEND, ATTEND | {"q": "x"}]
    assert script(port, "contiguous", *steps, arrays=wide)["steps"] == [
        "dtype_mismatch",
        "ok",
        "dtype_mismatch",
        "ok",
    ]


def test_reads_positions_and_codes(port):
    arrays = {"k": column([1, -127, 3]), "v": column([1, 2, 4])}
    steps = [APPEND, {"do": "evict", "positions": [1.0]}, READ | {"positions": True, "codes": True}, STATS]
    assert script(port, "quantised", *steps, arrays=arrays)["steps"] == ["ok"] * 4
    written = load(port.outputs)
    assert written["r.positions"].tolist() == [[0, 2]]
    assert written["r.k_codes"].ravel().tolist() == [127, 127]
    assert written["r.k_scale"].dtype == np.float32
    assert written["s.bytes"].tolist() == [20]
    assert "r.k_zero" not in written
    answer = script(port, "contiguous", APPEND, READ | {"codes": True}, READ | {"codes": 1})
    assert answer["steps"] == ["ok", "invalid_config", "invalid_config"]


def test_steps_of_positions(port):
    steps = [
        APPEND | {"padding": "left"},
        {"do": "append_attend", "k": "k", "v": "v", "q": "q", "out": "o", "lse": "l"},
        {"do": "shift", "by": 2, "from": 1},
        {"do": "reorder", "index": [0]},
        READ | {"positions": True},
        APPEND | {"padding": "top"},
        APPEND | {"tokens": "t"},
        {"do": "append_attend", "k": "k", "v": "v", "q": "q", "out": "x", "softcap": 0},
        {"do": "shift", "by": -1, "from": 0},
        {"do": "shift", "by": 1},
        {"do": "reorder", "index": 0},
        {"do": "evict"},
        {"do": "evict", "positions": ["1"]},
    ]
    answer = script(port, "contiguous", *steps)
    request, bad = "invalid_request", "invalid_config"
    assert answer["steps"] == ["ok"] * 5 + [bad] * 4 + [request] * 3 + [bad]
    written = load(port.outputs)
    assert written["r.positions"].tolist() == [[0, 3, 4, 5]]
    assert (written["o"].item(), sorted(written)) == (3, ["l", "o", "r.k", "r.lengths", "r.positions", "r.v"])


def test_tokens_share_pages(port):
    steps = [APPEND | {"tokens": "t"}, {"do": "fork", "into": "b"}, {"do": "reset", "cache": "b"}]
    steps += [APPEND | {"cache": "b"}, STATS | {"out": "1"}, {"do": "reset", "cache": "b"}]
    steps += [APPEND | {"cache": "b", "tokens": "t"}, STATS | {"out": "2"}]
    assert script(port, "paged", *steps)["steps"] == ["ok"] * 8
    written = load(port.outputs)
    assert [written[f"{out}.pages"].tolist() for out in "12"] == [[2, 0, 6], [1, 1, 7]]


def test_latents(port):
    arrays = {
        "c": np.float32([[[1, 2], [3, 4]]]),
        "r": np.float32([[[0], [0]]]),
        "z": np.zeros((1, 1, 1, 3), "f"),
    }
    steps = [{"do": "append", "latent": "c", "rope_key": "r"}, ATTEND | {"q": "z"}, READ]
    steps += [{"do": "append_attend", "latent": "c", "rope_key": "r", "q": "z", "out": "b"}]
    answer = port.run(
        "kv_cache",
        arrays,
        config={"kind": "latent", "batch": 1, "latent_dim": 2, "rope_dim": 1, "steps": steps},
    )
    assert answer["steps"] == ["ok"] * 4
    written = load(port.outputs)
    assert written["a"].ravel().tolist() == [2, 3]
    assert sorted(written) == ["a", "b", "r.latent", "r.lengths", "r.rope_key"]


@pytest.mark.parametrize(
    ("code", "kind", "change"),
    [
        ("step.evict", "rotating", {"steps": [{"do": "evict", "positions": []}]}),
        ("step.shift", "paged", {"steps": [{"do": "shift", "by": 1, "from": 0}]}),
        ("step.truncate", "cross", {"steps": [{"do": "truncate", "lengths": [0]}]}),
        ("step.append_attend", "cross", {"steps": [{"do": "append_attend"}]}),
        ("step.evict", "latent", {"latent_dim": 1, "rope_dim": 0, "steps": [{"do": "evict"}]}),
        ("invalid_request", "latent", {"latent_dim": 1}),
        ("invalid_request", "rotating", {"window": None}),
        ("invalid_config", "rotating", {"window": 0}),
        ("invalid_config", "rotating", {"keep": -1}),
        ("invalid_request", "paged", {"num_pages": None}),
        ("invalid_config", "paged", {"page_size": 0}),
        ("invalid_config", "paged", {"num_pages": 2**53}),
        ("invalid_request", "quantised", {"format": None}),
        ("invalid_config", "quantised", {"format": "int3"}),
        ("invalid_config", "quantised", {"group": 0}),
        ("invalid_config", "quantised", {"zero_point": 1}),
        ("invalid_config", "contiguous", {"rope": 5}),
        ("shape_mismatch", "contiguous", {"rope": {}}),
        ("invalid_config", "contiguous", {"head_dim": 2, "rope": {"offset": 1}}),
    ],
    ids=str,
)
def test_refuses_the_whole_script(port, code, kind, change):
    config = CACHE | {"kind": kind, "steps": []} | KINDS.get(kind, {}) | change
    port.refused(port.run("kv_cache", ARRAYS, config=config), code)
