"""What the wrapper makes of requests to the ops beside softmax, sdpa, mha and kv_cache."""

from types import SimpleNamespace

import numpy as np
import pytest
from ports import MHA, SDPA, Driver, column

import rosetta_attention as ra
from rosetta_port import Library


def ones(*shape):
    return np.ones(shape, np.float32)


# For each op a small good request: tensors and config.
GOOD = {
    "cast": ({"x": ones(2)}, {"to": "bf16"}),
    "sinusoidal": ({"x": ones(1, 2, 4)}, {}),
    "rope": ({"x": ones(1, 1, 2, 4)}, {}),
    "alibi": ({"scores": ones(1, 2, 2, 3)}, {}),
    "relative_bias": ({"scores": ones(1, 2, 2, 3), "table": ones(4, 2)}, {}),
    "scoring": ({"q": ones(1, 2, 3), "k": ones(1, 2, 3), "v": ones(1, 2, 3)}, {"form": "dot"}),
    "merge": ({"a_output": ones(2, 3), "a_lse": ones(2), "b_output": ones(2, 3), "b_lse": ones(2)}, {}),
    "varlen": (
        {x: ones(3, 1, 2) for x in "qkv"} | {f"cu_seqlens_{x}": np.array([0, 1, 3]) for x in "qk"},
        {},
    ),
    "dropout": ({"x": ones(8)}, {"p": 0.5, "seed": 1}),
    "linear_attention": ({x: ones(1, 1, 3, 2) for x in "qkv"}, {}),
    "gated_linear": ({x: ones(1, 1, 3, 2) for x in "qkv"}, {}),
    "sparse": ({x: ones(1, 1, 3, 2) for x in "qkv"}, {"pattern": {"type": "strided", "stride": 2}}),
    "structured": ({"h": ones(1, 3, 2), "w_1": ones(4, 2), "w_2": ones(2, 4)}, {}),
    "mla": (
        {"x": ones(1, 3, 2), "w_q": ones(5, 2), "w_dkv": ones(2, 2), "w_kr": ones(2, 2)}
        | {"w_uk": ones(3, 2), "w_uv": ones(4, 2), "w_o": ones(2, 4)},
        {"num_heads": 1},
    ),
    "layer_norm": ({"x": ones(2, 3)}, {}),
    "rms_norm": ({"x": ones(2, 3)}, {}),
    "gelu": ({"x": ones(2)}, {}),
    "swiglu": ({"a": ones(2), "b": ones(2)}, {}),
    "cache_write": ({"cache": ones(1, 3, 2), "update": ones(1, 1, 2)}, {}),
}
BLOCK = {f"attention.w_{part}": np.eye(2, dtype=np.float32) for part in "qkvo"}
BLOCK |= {"norm_1.weight": ones(2), "norm_2.weight": ones(2), "ff.w_1": ones(3, 2), "ff.w_2": ones(2, 3)}
CROSS = {f"cross.w_{part}": np.eye(2, dtype=np.float32) for part in "qkvo"} | {"norm_3.weight": ones(2)}
MODEL = {"tokens": np.array([[0, 1]]), "embedding": ones(3, 2)}
GOOD["block"] = ({"x": ones(1, 2, 2)} | BLOCK, {"num_heads": 1})
GOOD["transformer"] = (
    MODEL | {f"layers.0.{name}": x for name, x in BLOCK.items()},
    {"num_heads": 1, "num_layers": 1},
)


@pytest.mark.parametrize(
    ("form", "foreign"), [("dot", "w"), ("scaled", "w_v"), ("general", "w_q"), ("additive", "w")]
)
def test_weights_of_another_score_function(port, form, foreign):
    arrays, _ = GOOD["scoring"]
    own = {"w": ones(3, 3)} if form == "general" else {}
    own |= {"w_q": ones(4, 3), "w_k": ones(4, 3), "w_v": ones(4)} if form == "additive" else {}
    port.ok("scoring", arrays | own, config={"form": form})
    answer = port.run("scoring", arrays | own | {foreign: ones(3, 3)}, config={"form": form})
    port.refused(answer, "invalid_config")
    assert foreign in answer["message"]


def test_there_is_a_good_request_for_every_op(port):
    assert set(GOOD) | {"softmax", "sdpa", "mha", "kv_cache"} == set(port.port.library.ops())


@pytest.mark.parametrize("op", GOOD)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_variant_answers_in_every_type(port, op, dtype):
    arrays, config = GOOD[op]
    arrays = {
        name: x.astype(dtype) if x.dtype == np.float32 and not name.endswith("lse") else x
        for name, x in arrays.items()
    }
    if dtype == "float64":
        arrays = {name: x.astype(dtype) if name.endswith("lse") else x for name, x in arrays.items()}
    for variant in port.port.library.ops()[op]["variants"]:
        written = port.ok(op, arrays, config=config, variant=variant)
        assert written.keys() == {"output"}
        assert written["output"].dtype == ("bfloat16" if op == "cast" else dtype)


@pytest.mark.parametrize("op", GOOD)
def test_every_tensor_is_due(port, op):
    arrays, config = GOOD[op]
    for name in arrays:
        rest = {other: x for other, x in arrays.items() if other != name}
        port.refused(port.run(op, rest, config=config), "invalid_request")


@pytest.mark.parametrize(
    ("op", "outputs"),
    [
        ("rope", ["output", "cos", "sin"]),
        ("sparse", ["output", "lse", "visited", "mask"]),
        ("linear_attention", ["output", "state", "norm"]),
        ("mla", ["output", "weights", "lse", "latent", "rope_key"]),
        ("layer_norm", ["mean", "inv_std"]),
        ("transformer", ["logits"]),
        ("dropout", ["keep"]),
    ],
)
def test_outputs_by_name(port, op, outputs):
    arrays, config = GOOD[op]
    for variant in port.port.library.ops()[op]["variants"]:
        assert port.ok(op, arrays, config=config, variant=variant, want=outputs).keys() == set(outputs)
    port.refused(port.run(op, arrays, config=config, want=["answer"]), "invalid_request")


@pytest.mark.parametrize(
    ("code", "op", "config"),
    [
        ("invalid_request", "cast", {"to": None}),
        ("cast.f8", "cast", {"to": "f8"}),
        ("invalid_config", "cast", {"to": 32}),
        ("invalid_request", "scoring", {"form": None}),
        ("invalid_config", "scoring", {"form": "cosine"}),
        ("invalid_request", "scoring", {"form": "general"}),
        ("invalid_request", "dropout", {"seed": None}),
        ("invalid_config", "dropout", {"seed": 1.5}),
        ("invalid_request", "sparse", {"pattern": None}),
        ("invalid_config", "sparse", {"pattern": "window"}),
        ("invalid_config", "sparse", {"pattern": {"stride": 2}}),
        ("invalid_config", "sparse", {"pattern": {"type": "strided"}}),
        ("invalid_request", "sparse", {"pattern": {"type": "blocks", "block": 2}}),
        ("invalid_config", "rope", {"scaling": {"type": "linear"}}),
        ("invalid_config", "rope", {"scaling": {"type": "ntk", "factor": 2}}),
        ("invalid_config", "rope", {"scaling": 2}),
        ("invalid_config", "gelu", {"approximate": True}),
        ("invalid_config", "gated_linear", {"rule": "rwkv"}),
        ("invalid_request", "block", {"num_heads": None}),
        ("invalid_config", "block", {"norm": "batch"}),
        ("invalid_config", "block", {"activation": "tanh"}),
        ("invalid_request", "block", {"activation": "swiglu"}),
        ("invalid_config", "block", {"rope": 1}),
        ("invalid_request", "transformer", {"num_layers": None}),
        ("invalid_request", "transformer", {"num_layers": 2}),
        ("invalid_config", "transformer", {"num_layers": -1}),
    ],
    ids=str,
)
def test_configs_that_are_refused(port, code, op, config):
    arrays, good = GOOD[op]
    port.refused(port.run(op, arrays, config=good | config), code)


@pytest.mark.parametrize(
    ("code", "op", "arrays", "config"),
    [
        ("invalid_config", "rope", {"positions": np.array([[0, 1]])}, {"offset": 0}),
        ("invalid_config", "sinusoidal", {"positions": np.array([[0, 1]])}, {"offset": 0}),
        ("invalid_request", "rope", {"cos": ones(2, 2)}, {}),
        ("invalid_config", "rope", {"cos": ones(2, 2), "sin": ones(2, 2)}, {"base": 10000}),
        ("invalid_request", "linear_attention", {"norm": ones(1, 1, 2)}, {}),
        ("invalid_request", "block", CROSS, {}),
        ("invalid_request", "transformer", {f"layers.0.{name}": x for name, x in CROSS.items()}, {}),
        ("invalid_config", "block", {"context_lengths": np.array([1])}, {}),
        ("invalid_config", "block", {"norm_2.bias": ones(2)}, {"norm": "rms"}),
        ("shape_mismatch", "transformer", {"unembedding": ones(4, 2)}, {}),
        ("invalid_request", "block", {"context": ones(1, 1, 2)}, {}),
        ("invalid_request", "transformer", {"segments": np.array([[0, 0]])}, {}),
        ("invalid_request", "transformer", {"segment_embedding": ones(1, 2)}, {}),
        ("invalid_config", "varlen", {"q_offset": np.array([0, 0])}, {"q_offset": 1}),
    ],
    ids=str,
)
def test_tensors_that_are_refused(port, code, op, arrays, config):
    good, options = GOOD[op]
    port.refused(port.run(op, good | arrays, config=options | config), code)


def test_cross_attention(port):
    arrays = GOOD["block"][0] | CROSS | {"context": ones(1, 1, 2)}
    port.ok("block", arrays, config={"num_heads": 1, "rope": {}})
    packed = {name: x for name, x in arrays.items() if name not in ("attention.w_q", "attention.w_k")}
    packed["attention.w_qkv"] = np.concatenate([packed.pop("attention.w_v")] * 3)
    port.ok("block", packed, config={"num_heads": 1})
    port.refused(
        port.run("block", arrays | {"cross.w_qkv": ones(6, 2)}, config={"num_heads": 1}), "invalid_config"
    )


def test_a_norm_of_a_bias_alone(port):
    arrays, config = GOOD["transformer"]
    port.ok("transformer", arrays | {"final_norm.bias": ones(2)}, config=config)


def test_what_is_very_far_away(port):
    arrays, config = GOOD["dropout"]
    port.ok("dropout", arrays, config=config | {"offset": 1e300})
    scaling = {"type": "dynamic", "factor": 10**30, "original_length": 1e300}
    port.ok("rope", GOOD["rope"][0], config={"scaling": scaling, "offset": -1e300})


class TestMha:
    PACKED = {"x": MHA["x"], "w_qkv": ones(6, 2), "w_o": np.eye(2, dtype=np.float32)}  # noqa: RUF012

    def test_packed_weights(self, port):
        for packing in (None, "blocks", "heads"):
            port.ok("mha", self.PACKED, config={"num_heads": 2, "packing": packing}, want=["mean_weights"])

    @pytest.mark.parametrize(
        "change",
        [{"w_q": ones(2, 2)}, {"b_k": ones(2)}, {"context": ones(1, 2, 2)}],
        ids=lambda change: ",".join(change),
    )
    def test_packed_weights_stand_alone(self, port, change):
        port.refused(port.run("mha", self.PACKED | change, config={"num_heads": 2}), "invalid_config")

    def test_rotation(self, port):
        positions = {"positions": np.array([[4, 5]])}
        options = {"num_heads": 1, "rope": {"base": 100, "scaling": {"type": "linear", "factor": 2}}}
        port.ok("mha", MHA | positions, config=options)
        offset = {"num_heads": 1, "rope": {"offset": 4}}
        port.ok("mha", MHA, config=offset)
        port.refused(port.run("mha", MHA | positions, config=offset), "invalid_config")
        port.refused(port.run("mha", MHA | positions, config={"num_heads": 1}), "invalid_config")
        port.refused(port.run("mha", MHA, config={"num_heads": 1, "rope": 4}), "invalid_config")
        port.refused(
            port.run("mha", MHA | {"context": ones(1, 1, 2)}, config={"num_heads": 1, "rope": {}}),
            "invalid_config",
        )


class TestRungs:
    def test_they_agree_and_give_output_and_lse_alone(self, port):
        want = port.ok("sdpa", SDPA, want=["output", "lse"])
        for variant, sizes in (("flash", {"block_q": 1.0, "block_k": 1}), ("split", {"splits": 2})):
            got = port.ok("sdpa", SDPA, want=["output", "lse"], variant=variant, config=sizes)
            for name in got:
                np.testing.assert_allclose(got[name], want[name], rtol=1e-6)
            answer = port.run("sdpa", SDPA, want=["weights"], variant=variant)
            port.refused(answer, "want.weights")
            size = next(iter(sizes))
            port.refused(port.run("sdpa", SDPA, variant=variant, config={size: 0}), "invalid_config")
        port.ok("sdpa", SDPA, config={"splits": 0, "block_q": "x"})  # other variants ignore these

    def test_what_is_complete(self, port):
        complete = {op: claims.get("complete") for op, claims in port.port.library.ops().items()}
        assert {op: names for op, names in complete.items() if names} == {
            "sdpa": ["flash", "split"],
            "mla": ["absorbed"],
            "linear_attention": ["recurrent", "chunked"],
        }

    def test_dropout(self, port):
        for variant in ("naive", "flash", "split"):
            config = {"dropout": {"p": 1, "seed": 0}}
            assert port.ok("sdpa", SDPA, config=config, variant=variant)["output"].item() == 0
        for wrong in (0.5, {"p": 0.5}, {"p": 0.5, "seed": "1"}):
            port.refused(port.run("sdpa", SDPA, config={"dropout": wrong}), "invalid_config")


def test_a_library_claims_only_what_its_api_has(tmp_path):
    names = (
        "softmax",
        "softmax_lse",
        "sdpa",
        "sdpa_steps",
        "Mask",
        "KVCache",
        "rope",
        "Rope",
        "LinearScaling",
    )
    api = SimpleNamespace(**{name: getattr(ra, name) for name in names})
    port = Driver(Library(name="small", language="", runtime="", api=api), tmp_path)
    ops = port.ask(cmd="start", protocol=1)["ops"]
    assert sorted(ops) == ["kv_cache", "rope", "sdpa", "softmax"]
    assert ops["sdpa"]["variants"] == ["naive"]
    assert "complete" not in ops["sdpa"]
    assert "dropout" not in ops["sdpa"]["features"]
    assert "linear" in ops["rope"]["features"]
    assert "yarn" not in ops["rope"]["features"]
    port.refused(port.run("gelu", {"x": ones(1)}), "op.gelu")
    port.refused(port.run("sdpa", SDPA, variant="flash"), "variant.flash")
    port.refused(port.run("softmax", {"x": np.float16([1])}), "dtype.f16")


def test_a_cache_of_halves(port):
    arrays = {"q": column([0]).astype("bfloat16"), "k": column([1, 2]).astype("bfloat16")}
    arrays["v"] = column([3, 5]).astype("bfloat16")
    steps = [
        {"do": "append", "k": "k", "v": "v"},
        {"do": "attend", "q": "q", "out": "a", "lse": "l"},
        {"do": "read", "out": "r"},
    ]
    config = {"batch": 1, "num_kv_heads": 1, "head_dim": 1, "steps": steps}
    written = port.ok("kv_cache", arrays, config=config)
    assert {name: str(x.dtype) for name, x in written.items()} == {
        "a": "bfloat16",
        "l": "float32",
        "r.k": "bfloat16",
        "r.v": "bfloat16",
        "r.lengths": "int64",
    }
    assert written["a"].item() == 4
