"""An ONNX backend: models of the operators of `onnx_suite`, computed by one of the ports.

    from rosetta_attention import onnx_backend

    outputs = onnx_backend.run_model(model, inputs)              # by the port that ROSETTA_PORT names, else python
    outputs = onnx_backend.prepare(model, port="rust").run(inputs)

The translators are those of the suite `onnx`; a port is asked in its own protocol, and stays up until the program ends.
ONNX's own runner takes `RosettaBackend`, or this module, as the backend that it tests.
"""

import atexit
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from .features import features
from .onnx_suite.calls import Question, TranslationError
from .onnx_suite.translate import TRANSLATORS, translate
from .onnx_suite.vectors import read_call
from .ports import PORTS, choose_ports, read_ports
from .session import Session
from .tensors import Tensors, read_tensors, write_tensors

__all__ = [
    "BackendError",
    "RosettaBackend",
    "RosettaModel",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

VARIABLE = "ROSETTA_PORT"
DEFAULT_PORT = "python"
ONNX_DOMAINS = ("", "ai.onnx")


class BackendError(Exception):
    """What a model asks for is not translated, or the port does not do it."""


class RosettaModel(BackendRep):
    """A model that is ready to run: its nodes in order, and the port that answers them."""

    def __init__(self, model: onnx.ModelProto, port: str, variant: str = "") -> None:
        self._graph = model.graph
        self._opset = find_opset(model)
        self._constants = {x.name: onnx.numpy_helper.to_array(x) for x in model.graph.initializer}
        self._names = [x.name for x in model.graph.input if x.name not in self._constants]
        self._answerer = open_port(port)
        self._variant = variant

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs of the graph. inputs: by name, or all of them in order."""
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        given = dict(inputs) if isinstance(inputs, Mapping) else self._by_name(inputs)
        values = {**self._constants, **given}
        for node in self._graph.node:
            values |= self._run_node(node, values)
        return tuple(values[output.name] for output in self._graph.output)

    def _by_name(self, inputs: Sequence[Any]) -> Tensors:
        if len(inputs) != len(self._names):
            names = ", ".join(self._names)
            raise BackendError(f"inputs: expected {len(self._names)} ({names}), got {len(inputs)}")
        return dict(zip(self._names, map(np.asarray, inputs), strict=True))

    def _run_node(self, node: onnx.NodeProto, values: Tensors) -> Tensors:
        """The outputs of one node that have a name, by it."""
        try:
            call = read_call(node, self._opset, [values[name] for name in node.input if name])
            questions = translate(call)
        except (TranslationError, onnx.defs.SchemaError) as error:
            raise BackendError(str(error)) from error
        results: Tensors = {}
        for question in questions:
            results |= question.results(self._answerer.ask(question, call.dtype, self._variant))
        named = [name for name in node.output if name]
        return {name: results[formal] for name, formal in zip(named, call.wanted, strict=True)}


class Answerer:
    """One port, kept running, with a folder for the tensors that it is given and gives."""

    def __init__(self, name: str) -> None:
        (port,) = choose_ports(read_ports(PORTS), name)
        self.session = Session(port)
        self._folder = tempfile.TemporaryDirectory(prefix="onnx-backend-")

    def close(self) -> None:
        """Ends the port and removes the folder."""
        self.session.kill()
        self._folder.cleanup()

    def ask(self, question: Question, dtype: str, variant: str = "") -> Tensors:
        """The wanted outputs. Raises BackendError."""
        self._check_claimed(question, dtype, variant)
        inputs, outputs = (Path(self._folder.name, f"{name}.safetensors") for name in ("in", "out"))
        write_tensors(inputs, question.inputs)
        outputs.unlink(missing_ok=True)
        request = {"case": f"onnx-backend/{question.op}", "op": question.op, "config": question.config}
        request |= {"inputs": str(inputs), "outputs": str(outputs), "want": list(question.want)}
        answer = self.session.run({**request, "variant": variant} if variant else request)
        if answer["status"] != "ok":
            said = [str(answer[name]) for name in ("code", "feature", "message") if name in answer]
            raise self._error(question, f"{answer['status']}: {': '.join(said)}")
        failed = [code for code in answer.get("steps", ()) if code != "ok"]
        if failed:
            raise self._error(question, f"steps: expected ok, got {', '.join(failed)}")
        return read_tensors(outputs)

    def _check_claimed(self, question: Question, dtype: str, variant: str) -> None:
        """Nothing is asked that the port does not claim."""
        claim = self.session.start().ops.get(question.op)
        if claim is None:
            raise self._error(question, "the port does not claim this op")
        if variant and variant not in claim.variants:
            raise self._error(
                question, f"variant: expected one of {', '.join(claim.variants)}, got {variant}"
            )
        if dtype not in claim.dtypes:
            raise self._error(question, f"the port does not claim {dtype}")
        needed = features(question.op, question.config, question.inputs, question.want)
        missing = [name for name in needed if name not in claim.features]
        if missing:
            raise self._error(question, f"the port does not claim {', '.join(missing)}")

    def _error(self, question: Question, what: str) -> BackendError:
        return BackendError(f"{self.session.port.name}: {question.op}: {what}")


_answerers: dict[str, Answerer] = {}


def open_port(name: str) -> Answerer:
    """The port of that name; all models of a program share it."""
    if name not in _answerers:
        _answerers[name] = Answerer(name)
    return _answerers[name]


def close_ports() -> None:
    """Ends every port that runs; the next question starts it anew."""
    while _answerers:
        _answerers.popitem()[1].close()


atexit.register(close_ports)


def find_opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators. Raises BackendError for other operators, and for those not translated."""
    for node in model.graph.node:
        if node.domain not in ONNX_DOMAINS or node.op_type not in TRANSLATORS:
            known = ", ".join(TRANSLATORS)
            raise BackendError(f"operator: expected one of {known}, got {qualified(node)}")
    versions: list[int] = [entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS]
    return max(versions)


def qualified(node: onnx.NodeProto) -> str:
    """The operator with its domain, where that is not ONNX's own."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


class RosettaBackend(Backend):
    """What ONNX's runner and other programs talk to."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether every operator of the model is translated, by its name; an attribute may still be refused."""
        try:
            find_opset(model)
        except BackendError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", port: str = "", variant: str = "", **kwargs: Any
    ) -> RosettaModel:
        """The model, checked. Raises BackendError, onnx.checker.ValidationError."""
        if not cls.supports_device(device):
            raise BackendError(f"device: expected CPU, got {device}")
        super().prepare(model, device)
        return RosettaModel(model, port or os.environ.get(VARIABLE, DEFAULT_PORT), variant)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """One node as a model of its own."""
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
        graph = onnx.helper.make_graph(
            [node],
            node.op_type,
            [value_info(name, np.asarray(given[name])) for name in names],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
        port = kwargs.pop("port", "") or os.environ.get(VARIABLE, DEFAULT_PORT)
        return RosettaModel(model, port, kwargs.pop("variant", "")).run(given)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """The ports run on the CPU."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except AttributeError:
            return False


def value_info(name: str, x: np.ndarray) -> onnx.ValueInfoProto:
    """How a graph declares an input."""
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)


# A module can be a backend as well as a class: ONNX_BACKEND=rosetta_attention.onnx_backend.
is_compatible = RosettaBackend.is_compatible
prepare = RosettaBackend.prepare
run_model = RosettaBackend.run_model
run_node = RosettaBackend.run_node
supports_device = RosettaBackend.supports_device
