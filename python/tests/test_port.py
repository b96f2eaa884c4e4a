"""What a port answers, line by line (docs/protocol.md), without a process around it."""

import json
import tomllib

import numpy as np
import pytest
from ports import APPEND, ATTEND, CACHE, MHA, ROOT, SDPA, SOFTMAX, column, load, raw_file

from rosetta_port.serve import Port

INF = np.inf


class TestStart:
    def test_describes_the_port(self, driver):
        answer = driver.ask(cmd="start", protocol=1, threads=1, unknown="field")
        assert answer["protocol"] == 1
        assert answer["threads"] == 1
        assert {"name", "language", "version", "runtime", "isa"} <= set(answer)
        assert {"softmax", "sdpa", "mha", "kv_cache"} <= set(answer["ops"])
        for claims in answer["ops"].values():
            assert claims["variants"][0] == "naive"
            assert claims["dtypes"] == list(driver.port.library.cache_dtypes)
            assert len(set(claims["features"])) == len(claims["features"])
            assert set(claims.get("complete", [])) <= set(claims["variants"][1:])

    def test_is_what_the_file_of_ports_says(self, driver):
        answer = driver.ask(cmd="start", protocol=1)
        described = tomllib.loads((ROOT / "conformance" / "ports" / f"{answer['name']}.toml").read_text())
        assert (described["name"], described["language"]) == (answer["name"], answer["language"])
        assert described["kind"] == "port"
        assert described["command"][-1].startswith("rosetta_port.")

    def test_comes_first(self, driver):
        port = Port(driver.port.library)
        request = {"cmd": "run", "seq": 1, "op": "softmax", "inputs": "x", "outputs": "y"}
        answer = port.answer(json.dumps(request).encode())
        assert (answer["code"], answer["seq"]) == ("invalid_request", 1)
        assert port.answer(b'{"cmd": "bench"}')["code"] == "invalid_request"

    @pytest.mark.parametrize(
        "request_",
        [{}, {"protocol": 2}, {"protocol": 1, "threads": "x"}, {"protocol": 1, "threads": 0}],
        ids=str,
    )
    def test_refuses(self, driver, request_):
        assert driver.ask(cmd="start", **request_)["code"] == "invalid_request"


class TestLines:
    @pytest.mark.parametrize(
        "line",
        [
            b"",
            b"\n",
            b"hello",
            b"[1]",
            b"3",
            b'{"cmd": "run"',
            b"\xff\xfe",
            b'{"seq": NaN}',
            b'{"cmd": "stop", "seq": 1e999}',
            b'\xef\xbb\xbf{"cmd": "stop"}',
            '{"cmd": "stop"}'.encode("utf-16-le"),
            b"{}",
            b"[" * 100_000,
        ],
        ids=lambda line: repr(line[:12]),
    )
    def test_that_are_no_request(self, driver, line):
        assert driver.port.answer(line)["code"] == "invalid_request"
        assert driver.ask(cmd="start", protocol=1)["status"] == "ok"

    def test_an_unknown_command(self, driver):
        assert driver.ask(cmd="dance", seq=3) | {"message": ""} == {
            "seq": 3,
            "status": "error",
            "code": "invalid_request",
            "message": "",
        }

    def test_seq_comes_back_as_it_was(self, driver):
        for seq in (0, 7, 2**64 + 1, "a", None):
            assert driver.run("softmax", SOFTMAX, seq=seq)["seq"] == seq
        assert "seq" not in driver.run("softmax", SOFTMAX)

    def test_stop(self, driver):
        assert driver.ask(cmd="stop") == {"status": "ok"}
        assert driver.port.stopped


class TestRun:
    def test_writes_exactly_what_is_wanted(self, driver):
        assert sorted(driver.ok("sdpa", SDPA)) == ["output"]
        every = ["lse", "weights", "output", "biased", "capped", "scores"]
        written = driver.ok("sdpa", SDPA, want=every)
        assert sorted(written) == sorted(every)
        np.testing.assert_allclose(written["output"], [[[[5]]]], rtol=1e-6)
        np.testing.assert_allclose(written["lse"], [[[np.log(3)]]], rtol=1e-6)
        assert driver.ok("sdpa", SDPA, want=["lse"]).keys() == {"lse"}
        assert driver.ok("sdpa", SDPA, want=[]) == {}

    def test_null_is_absent(self, driver):
        config = dict.fromkeys(("scale", "causal", "q_offset", "window", "softcap"))
        np.testing.assert_allclose(
            driver.ok("sdpa", SDPA, config=config, want=None, variant=None)["output"], 5
        )
        assert "output" in driver.ok("softmax", SOFTMAX, config=None)

    def test_options_from_config_and_tensors(self, driver):
        k = v = column([1, 2, 4, 8])
        q = np.zeros((1, 1, 2, 1), np.float32)
        sdpa = {"q": q, "k": k, "v": v}

        def check(config, want, **tensors):
            output = driver.ok("sdpa", sdpa | tensors, config=config)["output"].ravel()
            np.testing.assert_allclose(output, want, rtol=1e-6)

        check({"causal": True}, [1, 1.5])
        check({"causal": True, "q_offset": 1}, [1.5, 7 / 3])
        check({"causal": True}, [1.5, 7 / 3], q_offset=np.int64([1]))
        check({"window": [0, 0]}, [1, 2])
        check({"window": [None, 0]}, [1, 1.5])
        check({}, [1.5, 1.5], kv_lengths=np.int64([2]))
        check({}, [5, 5], mask=np.array([False, True, False, True]))
        check({}, [4.5, 4.5], bias=np.float32([0, -INF, -INF, 0]))
        check({}, [15 / 8, 15 / 8], sinks=np.float32([np.log(4)]))

    def test_rank_1_softmax_has_an_lse_of_rank_0(self, driver):
        written = driver.ok("softmax", SOFTMAX, want=["output", "lse"])
        assert written["output"].shape == (2,)
        assert written["lse"].shape == ()

    def test_an_integer_may_be_written_with_a_point(self, driver):
        k = v = column([1, 2, 4, 8])
        sdpa = {"q": np.zeros((1, 1, 1, 1), np.float32), "k": k, "v": v}
        config = {"causal": True, "q_offset": 2.0, "window": [1.0, None], "scale": 1, "softcap": 2}
        assert driver.ok("sdpa", sdpa, config=config)["output"].item() == 3
        for far in (1e300, 2**63 - 1, 10**30):  # no overflow
            assert driver.ok("sdpa", sdpa, config={"causal": True, "q_offset": far})["output"].item() == 3.75
            assert driver.ok("sdpa", sdpa, config={"causal": True, "q_offset": -far})["output"].item() == 0
            assert driver.ok("sdpa", sdpa, config={"window": [far, far]})["output"].item() == 3.75
        driver.ok("mha", MHA, config={"num_heads": 2.0})

    def test_mha(self, driver):
        written = driver.ok("mha", MHA, config={"num_heads": 2}, want=["output", "weights", "lse"])
        assert {name: x.shape for name, x in written.items()} == {
            "output": (1, 2, 2),
            "weights": (1, 2, 2, 2),
            "lse": (1, 2, 2),
        }
        context = {"context": np.ones((1, 3, 2), np.float32), "b_o": np.float32([1, 2])}
        assert driver.ok("mha", MHA | context, config={"num_heads": 1})["output"].tolist() == [[[2, 3]] * 2]

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_outputs_have_the_dtype_of_the_inputs(self, driver, dtype):
        arrays = {name: x.astype(dtype) for name, x in SDPA.items()}
        for x in driver.ok("sdpa", arrays, want=["output", "weights", "lse"]).values():
            assert x.dtype == dtype


class TestRefusals:
    @pytest.mark.parametrize(
        ("code", "fields"),
        [
            ("op.dance", {"op": "dance"}),
            ("variant.fast", {"variant": "fast"}),
            ("invalid_request", {"op": None}),
            ("invalid_request", {"op": ["sdpa"]}),
            ("invalid_request", {"variant": 3}),
            ("invalid_request", {"config": []}),
            ("invalid_request", {"want": "output"}),
            ("invalid_request", {"want": ["output", "answer"]}),
            ("invalid_request", {"inputs": "missing.safetensors"}),
            ("invalid_request", {"inputs": None}),
            ("invalid_request", {"inputs": "\0"}),
            ("invalid_request", {"outputs": None}),
            ("invalid_request", {"outputs": "\0"}),
            ("invalid_request", {"outputs": "/nowhere/at/all"}),
            ("invalid_config", {"config": {"causal": 1}}),
            ("invalid_config", {"config": {"softcap": "x"}}),
            ("invalid_config", {"config": {"softcap": 0}}),
            ("invalid_config", {"config": {"scale": True}}),
            ("invalid_config", {"config": {"scale": 10**400}}),
            ("invalid_config", {"config": {"q_offset": 1.5}}),
            ("invalid_config", {"config": {"q_offset": "x"}}),
            ("invalid_config", {"config": {"window": 2}}),
            ("invalid_config", {"config": {"window": [1]}}),
            ("invalid_config", {"config": {"window": [0.5, 1]}}),
            ("invalid_config", {"config": {"window": [-1, 0]}}),
        ],
        ids=str,
    )
    def test_of_fields(self, driver, code, fields):
        request = {
            "cmd": "run",
            "op": "sdpa",
            "inputs": driver.inputs(**SDPA),
            "outputs": str(driver.outputs),
        }
        driver.refused(driver.ask(**request | fields), code)

    @pytest.mark.parametrize("name", ["q", "k", "v"])
    def test_of_a_missing_tensor(self, driver, name):
        driver.refused(driver.run("sdpa", {n: x for n, x in SDPA.items() if n != name}), "invalid_request")

    def test_of_a_missing_number(self, driver):
        driver.refused(driver.run("mha", MHA), "invalid_request")
        driver.refused(
            driver.run("kv_cache", {}, config={"batch": 1, "num_kv_heads": 1, "steps": []}), "invalid_request"
        )
        driver.refused(driver.run("kv_cache", {}, config=CACHE), "invalid_request")

    def test_of_two_offsets(self, driver):
        arrays = SDPA | {"q_offset": np.int64([0])}
        driver.refused(driver.run("sdpa", arrays, config={"q_offset": 0}), "invalid_config")

    @pytest.mark.parametrize(
        ("code", "change"),
        [
            ("shape_mismatch", {"k": np.zeros((1, 1, 2, 2), np.float32)}),
            ("dtype_mismatch", {"k": np.zeros((1, 1, 2, 1))}),
            ("dtype_mismatch", {"kv_lengths": np.int32([1])}),
            ("dtype_mismatch", {"kv_lengths": np.uint32([1])}),
            ("dtype_mismatch", {"mask": np.float32([1, 0])}),
        ],
        ids=str,
    )
    def test_of_the_library(self, driver, code, change):
        driver.refused(driver.run("sdpa", SDPA | change), code)

    @pytest.mark.parametrize("dtype", ["F16", "BF16", "F8_E4M3"])
    def test_of_a_dtype_that_the_port_lacks(self, driver, dtype):
        path = driver.folder / "half.safetensors"
        path.write_bytes(raw_file({"x": (dtype, [2], b"\0" * (2 if dtype == "F8_E4M3" else 4))}))
        answer = driver.ask(cmd="run", op="softmax", inputs=str(path), outputs=str(driver.outputs))
        if dtype.lower() in driver.port.library.cache_dtypes:
            assert answer["status"] == "ok", answer
            assert load(driver.outputs)["output"].astype(float).tolist() == [0.5, 0.5]
        else:
            driver.refused(answer, f"dtype.{dtype.lower()}")

    def test_of_the_unforeseen(self, driver, monkeypatch):
        def explode(*args, **options):
            raise ZeroDivisionError("oh")

        monkeypatch.setattr(driver.port.library.api, "sdpa", explode)
        driver.refused(driver.run("sdpa", SDPA), "internal")
        monkeypatch.undo()
        driver.ok("sdpa", SDPA)


class TestBench:
    def bench(self, driver, inputs, **fields):
        request = {"cmd": "bench", "op": "sdpa", "case": "c", "inputs": inputs, "warmup": 1, "samples": 3}
        return driver.ask(**request | fields)

    def test_times_and_writes_the_last_result(self, driver):
        answer = self.bench(
            driver, driver.inputs(**SDPA), min_sample_ns=2_000_000, outputs=str(driver.outputs)
        )
        assert answer["status"] == "ok"
        assert answer["first_ns"] > 0
        assert answer["evals"] > 1
        assert len(answer["samples_ns"]) == 3
        assert min(answer["samples_ns"]) * answer["evals"] >= 2_000_000
        assert isinstance(answer["cpu_ns"], int)
        assert answer["cpu_ns"] > 0
        np.testing.assert_allclose(load(driver.outputs)["output"], 5, rtol=1e-6)

    def test_reads_nothing_again(self, driver):
        inputs = driver.inputs(**SDPA)
        self.bench(driver, inputs)
        (driver.folder / "in1.safetensors").unlink()
        assert self.bench(driver, inputs, outputs=str(driver.outputs))["status"] == "ok"
        assert driver.outputs.exists()
        driver.outputs.unlink()
        driver.refused(self.bench(driver, inputs, config={"causal": True}), "invalid_request")
        driver.refused(self.bench(driver, inputs), "invalid_request")

    def test_a_script_starts_afresh_at_every_evaluation(self, driver):
        inputs = driver.inputs(q=column([0]), k=column([1]), v=column([7]))
        config = CACHE | {"capacity": 1, "steps": [APPEND, ATTEND]}
        answer = self.bench(
            driver, inputs, op="kv_cache", config=config, min_sample_ns=500_000, outputs=str(driver.outputs)
        )
        assert answer["evals"] >= 1
        assert answer["steps"] == ["ok", "ok"]
        assert load(driver.outputs)["a"].item() == 7

    def test_refuses(self, driver):
        for wrong in ({"samples": 0}, {"warmup": -1}, {"min_sample_ns": 0.5}, {"outputs": False}):
            driver.refused(self.bench(driver, driver.inputs(**SDPA), **wrong), "invalid_request")
        driver.refused(self.bench(driver, driver.inputs(**SDPA), variant="fast"), "variant.fast")
        driver.refused(self.bench(driver, driver.inputs(**SDPA), config={"softcap": 0}), "invalid_config")
