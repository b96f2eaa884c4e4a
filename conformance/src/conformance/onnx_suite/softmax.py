"""ONNX's Softmax as ours, which knows the last axis only: another one is moved there, and back in the answer."""

import numpy as np

from ..cases.draft import Draft
from .flags import softmax_flags
from .vectors import Tensors, Vector, VectorError


def to_softmax(vector: Vector) -> tuple[Draft, Tensors]:
    """The call on the last axis, and ONNX's answer with its axis moved in the same way."""
    strange = set(vector.inputs) | set(vector.outputs) | set(vector.attributes)
    if strange - {"x", "y", "axis"}:
        raise VectorError(f"softmax {vector.name}: not translated: {', '.join(sorted(strange))}")
    axis = vector.attributes.get("axis", -1)
    x, y = (np.moveaxis(tensor, axis, -1) for tensor in (vector.inputs["x"], vector.outputs["y"]))
    draft = Draft(
        id=f"onnx/softmax/{vector.name}",
        op="softmax",
        inputs={"x": np.ascontiguousarray(x)},
        flags=softmax_flags(x),
        note=f"ONNX Softmax {vector.opset}: axis {axis} of {list(vector.inputs['x'].shape)}",
        dtypes=("f32",),
    )
    return draft, {"output": np.ascontiguousarray(y)}
