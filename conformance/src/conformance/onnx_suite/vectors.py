"""The node cases of the onnx package: one call of one operator each, with the outputs that ONNX publishes for it."""

import importlib
import importlib.metadata
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

PACKAGE = "onnx"
PINNED = "1.23.2"  # of which the counts hold (requirements/onnx.txt)
Tensors = dict[str, np.ndarray]


class VectorError(Exception):
    """The package is missing, is another version, or says something that we do not understand."""


@dataclass(frozen=True)
class Vector:
    """One case. Inputs and outputs by the names that the operator's specification gives them."""

    name: str
    opset: int
    attributes: dict[str, Any]
    inputs: Tensors
    outputs: Tensors
    rtol: float
    atol: float

    @property
    def half_type(self) -> str | None:
        """The half type that it computes in, if it does."""
        types = {str(x.dtype) for x in self.inputs.values()} & {"float16", "bfloat16"}
        return min(types, default=None)


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
def read_vectors(operator: str) -> tuple[Vector, ...]:
    """Every case of an operator, without the twins whose operator is expanded into primitive ones.

    The package computes its cases when their modules are imported. Its own `collect_testcases` imports those of all
    operators, which takes ten seconds; this imports one.
    """
    from onnx import helper
    from onnx.backend.test.case import node

    node._TargetOpType = operator  # type: ignore[assignment]  # names the only operator whose cases are kept
    importlib.import_module(f"{node.__name__}.{operator.lower()}")
    found = []
    for case in node._NodeTestCases:
        (call, *more) = case.model.graph.node
        if more or call.op_type != operator or case.name.endswith("_expanded"):
            continue
        ((inputs, outputs),) = case.data_sets
        found.append(
            Vector(
                name=case.name.removeprefix(f"test_{operator.lower()}_"),
                opset=case.model.opset_import[0].version,
                attributes={a.name: helper.get_attribute_value(a) for a in call.attribute},
                inputs=dict(zip(filter(None, call.input), inputs, strict=True)),
                outputs=dict(zip(filter(None, call.output), outputs, strict=True)),
                rtol=case.rtol,
                atol=case.atol,
            )
        )
    return tuple(found)
