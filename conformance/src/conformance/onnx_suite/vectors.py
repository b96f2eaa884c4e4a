"""The node cases of the onnx package: one call of one operator each, with the outputs that ONNX publishes for it."""

import importlib
import importlib.metadata
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..tensors import Tensors
from .calls import Call

PACKAGE = "onnx"
PINNED = "1.23.2"  # of which the counts hold (requirements/onnx.txt)
# What the package calls the module of an operator's cases, and what their names begin with.
MODULES = {
    "Attention": "attention",
    "RotaryEmbedding": "rotaryembedding",
    "TensorScatter": "tensorscatter",
    "LinearAttention": "linear_attention",
    "LayerNormalization": "layernormalization",
    "RMSNormalization": "rmsnormalization",
    "Gelu": "gelu",
    "SwiGLU": "swiglu",
    "Softmax": "softmax",
}
PREFIXES = {
    "Attention": "attention",
    "RotaryEmbedding": "rotary_embedding",
    "TensorScatter": "tensorscatter",
    "LinearAttention": "linear_attention",
    "LayerNormalization": "layer_normalization",
    "RMSNormalization": "rms_normalization",
    "Gelu": "gelu",
    "SwiGLU": "swiglu",
    "Softmax": "softmax",
}
PLAIN = "plain"  # the case whose name is the prefix alone
BF16_RTOL = 2.0**-6  # two steps of bfloat16: what ONNX's own runner allows such an output at least


class VectorError(Exception):
    """The package is missing or another version, or its answers are not what they should be."""


@dataclass(frozen=True)
class Vector:
    """One case: a call, and ONNX's outputs by the names of the operator's specification."""

    name: str
    call: Call
    outputs: Tensors
    rtol: float
    atol: float


def package_version() -> str:
    """The version that is installed. Raises VectorError unless it is the pinned one."""
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise VectorError(
            f"{PACKAGE} is not installed; `make setup` installs requirements/onnx.txt"
        ) from None
    if version != PINNED:
        raise VectorError(f"{PACKAGE}: expected version {PINNED} (requirements/onnx.txt), got {version}")
    return version


@cache
def read_cases(operator: str) -> tuple[Any, ...]:
    """ONNX's test cases of an operator, without the twins whose operator is expanded into primitive ones.

    The package computes its cases when their modules are imported. Its own `collect_testcases` imports those of all
    operators, which takes ten seconds; this imports one.
    """
    from onnx.backend.test.case import node

    node._TargetOpType = operator  # type: ignore[assignment]  # names the only operator whose cases are kept
    importlib.import_module(f"{node.__name__}.{MODULES[operator]}")
    node._TargetOpType = None
    found = []
    for case in node._NodeTestCases:
        calls = case.model.graph.node
        if len(calls) == 1 and calls[0].op_type == operator and not case.name.endswith("_expanded"):
            found.append(case)
    return tuple(found)


@cache
def read_vectors(operator: str) -> tuple[Vector, ...]:
    """The same cases as calls with answers."""
    found = []
    for case in read_cases(operator):
        (node,) = case.model.graph.node
        ((inputs, outputs),) = case.data_sets
        call = read_call(node, case.model.opset_import[0].version, inputs)
        halves = any(x.dtype.name == "bfloat16" for x in outputs)
        found.append(
            Vector(
                name=case.name.removeprefix(f"test_{PREFIXES[operator]}").removeprefix("_") or PLAIN,
                call=call,
                outputs=dict(zip(call.wanted, map(np.asarray, outputs), strict=True)),
                rtol=max(case.rtol, BF16_RTOL) if halves else case.rtol,
                atol=case.atol,
            )
        )
    return tuple(found)


def read_call(node: onnx.NodeProto, opset: int, inputs: Any) -> Call:
    """A node and the tensors of those of its inputs that have a name."""
    schema = onnx.defs.get_schema(node.op_type, opset)
    given = [formal.name for formal, name in zip(schema.inputs, node.input, strict=False) if name]
    wanted = [formal.name for formal, name in zip(schema.outputs, node.output, strict=False) if name]
    return Call(
        operator=node.op_type,
        version=schema.since_version,
        attributes={a.name: helper.get_attribute_value(a) for a in node.attribute},
        inputs=dict(zip(given, map(np.asarray, inputs), strict=True)),
        wanted=tuple(wanted),
    )
