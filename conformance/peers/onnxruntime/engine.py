"""A model of one ONNX node, made here and run by onnxruntime on the CPU: natively, or as WebAssembly in Node."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from safetensors.numpy import load_file, save_file

from rosetta_port.timing import time_call

Tensors = dict[str, np.ndarray]
Timing = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
NODE = ROOT / ".tools/bin/node"
WEB = ROOT / "conformance/peers/onnxruntime-web/engine.js"
TYPES = {
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "bool": TensorProto.BOOL,
    "int64": TensorProto.INT64,
}


class Unsupported(Exception):
    """What the operator has no words for."""


class InvalidRequest(Exception):
    """A request that breaks the protocol."""


class EngineError(Exception):
    """What onnxruntime says about a model that it does not run."""


class Engine:
    """onnxruntime in Python, with one thread.

    attention: the newest opset of Attention that it knows. lacks: ops and features of ops that it does not have.
    plan: how to time the models that are run next; None = not at all. timings: what that found, one for each.
    """

    name = "onnxruntime"
    version = onnxruntime.__version__
    runtime = f"onnxruntime {onnxruntime.__version__}, CPUExecutionProvider"
    attention = 25
    lacks: frozenset[str] = frozenset()
    plan: dict[str, int] | None = None

    def __init__(self) -> None:
        self.timings: list[Timing] = []

    def run_node(
        self,
        operator: str,
        opset: int,
        slots: Sequence[str],
        inputs: Tensors,
        outputs: Sequence[str],
        attributes: dict[str, Any],
        types: dict[str, int] | None = None,
    ) -> list[np.ndarray]:
        """The named outputs. slots: the operator's inputs in order; what is not among `inputs` is left out.

        types: of outputs that are not of the first input's type. An output without a name is not asked for.
        """
        names = [name if name in inputs else "" for name in slots]
        while not names[-1]:
            names.pop()
        wanted = [name for name in outputs if name]
        own = TYPES[str(inputs[names[0]].dtype)]
        element_types = dict.fromkeys(wanted, own) | (types or {})
        graph = helper.make_graph(
            [helper.make_node(operator, names, outputs, **attributes)],
            operator,
            [helper.make_tensor_value_info(name, TYPES[str(x.dtype)], x.shape) for name, x in inputs.items()],
            [helper.make_tensor_value_info(name, element_types[name], None) for name in wanted],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        row_major = {name: np.asarray(x, order="C") for name, x in inputs.items()}
        return self.run_model(model.SerializeToString(), row_major, wanted)

    def run_model(self, model: bytes, inputs: Tensors, wanted: Sequence[str]) -> list[np.ndarray]:
        """The wanted outputs of any model."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        found: list[np.ndarray]
        if self.plan is None:
            found = session.run(list(wanted), inputs)
        else:
            timed, found = time_call(lambda: session.run(list(wanted), inputs), **self.plan)
            self.timings.append(asdict(timed))
        return found


class WebEngine(Engine):
    """onnxruntime-web in a Node process, which is given models and tensors as files."""

    name = "onnxruntime-web"
    attention = 24
    lacks = frozenset({"gated_linear", "sdpa.window"})

    def __init__(self) -> None:
        super().__init__()
        self._node = subprocess.Popen([NODE, WEB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._folder = tempfile.TemporaryDirectory(prefix="onnxruntime-web-")
        about = self._ask({})
        self.version = about["version"]
        self.runtime = f"onnxruntime-web {self.version}, wasm, Node {about['node']}"

    def run_model(self, model: bytes, inputs: Tensors, wanted: Sequence[str]) -> list[np.ndarray]:
        """The wanted outputs of any model."""
        paths = {name: Path(self._folder.name, name) for name in ("model", "inputs", "outputs")}
        paths["model"].write_bytes(model)
        save_file(inputs, paths["inputs"])
        plan = {} if self.plan is None else {"plan": self.plan}
        answer = self._ask({name: str(path) for name, path in paths.items()} | plan)
        if self.plan is not None:
            self.timings.append(answer["timing"])
        found = load_file(paths["outputs"])
        return [found[name] for name in wanted]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(json.dumps(request) + "\n")
        self._node.stdin.flush()
        answer: dict[str, Any] = json.loads(self._node.stdout.readline())
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer
