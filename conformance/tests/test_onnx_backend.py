"""The ONNX backend: ONNX's own runner over its own cases, and models of other programs."""

import unittest
from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test import runner

from conformance import onnx_backend
from conformance.onnx_backend import BackendError, RosettaBackend
from conformance.onnx_suite.vectors import MODULES, read_cases
from conformance.ports import choose_ports, read_ports
from conformance.session import PortGivenUp
from rosetta_attention import onnx_backend as package

VECTORS = 170  # test_onnx_suite.py counts them by operator
CASES = [case for operator in MODULES for case in read_cases(operator)]


def run_onnx_tests(monkeypatch: pytest.MonkeyPatch, port: str) -> unittest.TestResult:
    """ONNX's runner over the cases of these operators. It would collect those of all others too: ten seconds more."""
    monkeypatch.setattr(runner, "load_model_tests", lambda kind: CASES if kind == "node" else [])
    monkeypatch.setenv("ROSETTA_PORT", port)
    result = unittest.TestResult()
    runner.Runner(RosettaBackend, __name__).test_suite.run(result)
    return result


def has_no_text(port: str, message: str) -> bool:
    """PyTorch's texts are those that are a real alternative to NumPy's; a cache's update is not."""
    return port == "torch" and message.endswith("cache_write: the port does not claim this op")


@pytest.fixture
def _ports_closed() -> Iterator[None]:
    yield
    onnx_backend.close_ports()


@pytest.mark.usefixtures("_ports_closed")
@pytest.mark.parametrize("port", [port.name for port in choose_ports(read_ports())])
def test_onnx_own_runner_passes_every_case(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    """Each is there for CPU and for CUDA; only the latter are skipped."""
    try:
        onnx_backend.open_port(port).session.start()
    except PortGivenUp as error:
        pytest.skip(f"left out by PORTS: {error}")
    result = run_onnx_tests(monkeypatch, port)
    messages = [text.strip().splitlines()[-1] for _, text in (*result.errors, *result.failures)]
    assert Counter(message for message in messages if not has_no_text(port, message)) == {}
    assert {reason for _, reason in result.skipped} == {"Backend doesn't support device CUDA"}
    assert result.testsRun - len(result.skipped) == len(CASES) == VECTORS


def test_the_package_and_the_harness_give_the_same_backend() -> None:
    assert package.RosettaBackend is RosettaBackend
    assert {name: getattr(package, name) for name in package.__all__} == {
        name: getattr(onnx_backend, name) for name in onnx_backend.__all__
    }


def make_model(*nodes: onnx.NodeProto, opset: int = 25, domain: str = "") -> onnx.ModelProto:
    """A graph from x, and a weight that it holds itself, to y."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, opset)])


NORM = helper.make_node("RMSNormalization", ["x", "w"], ["normed"])
GELU = helper.make_node("Gelu", ["normed"], ["y"])
X = np.array([[1, 2, 2], [0, 3, 4]], np.float32)


def test_a_model_of_several_nodes_runs_with_its_own_weights() -> None:
    model = make_model(NORM, GELU)
    (y,) = onnx_backend.run_model(model, [X])
    (normed,) = onnx_backend.run_node(NORM, {"x": X, "w": np.array([1, 2, 3], np.float32)})
    (by_node,) = onnx_backend.run_node(GELU, [normed])
    np.testing.assert_array_equal(y, by_node)
    np.testing.assert_allclose(normed[0], [1 / 3**0.5, 4 / 3**0.5, 6 / 3**0.5], rtol=1e-4)
    (by_name,) = onnx_backend.prepare(model, port="python").run({"x": X})
    np.testing.assert_array_equal(by_name, y)
    (alone,) = onnx_backend.prepare(model, port="python", variant="naive").run(X)
    np.testing.assert_array_equal(alone, y)


def test_what_is_not_translated_is_said_before_anything_runs() -> None:
    conv = make_model(NORM, helper.make_node("Relu", ["normed"], ["y"]))
    assert not onnx_backend.is_compatible(conv)
    assert onnx_backend.is_compatible(make_model(NORM, GELU))
    assert not onnx_backend.is_compatible(make_model(NORM, GELU), device="CUDA")
    with pytest.raises(BackendError, match=r"operator: expected one of Attention, .*, got Relu"):
        onnx_backend.prepare(conv)
    other = make_model(helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft"), domain="com.microsoft")
    with pytest.raises(BackendError, match=r"got com\.microsoft\.Gelu"):
        RosettaBackend.prepare(other)
    with pytest.raises(BackendError, match="device: expected CPU, got CUDA"):
        onnx_backend.prepare(make_model(NORM, GELU), "CUDA")


def test_a_bad_call_is_named_with_the_port_and_its_code() -> None:
    model = make_model(NORM, GELU)
    with pytest.raises(BackendError, match=r"inputs: expected 1 \(x\), got 2"):
        onnx_backend.prepare(model).run([X, X])
    short = [X, np.ones(2, np.float32)]
    with pytest.raises(BackendError, match="RMSNormalization: scale: expected a shape that broadcasts"):
        onnx_backend.run_node(NORM, short)
    eps = helper.make_node("RMSNormalization", ["x", "w"], ["y"], epsilon=-1.0)
    with pytest.raises(BackendError, match="python: rms_norm: error: invalid_config: "):
        onnx_backend.run_node(eps, [X, np.ones(3, np.float32)])
    with pytest.raises(BackendError, match=r"python: gelu: variant: expected one of .*, got fused"):
        onnx_backend.run_node(GELU, [X], variant="fused")


def test_a_device_is_known_or_not() -> None:
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA:1")
    assert not onnx_backend.supports_device("abacus")
