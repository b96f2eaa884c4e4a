"""ONNX's Softmax as ours, which knows the last axis only: another one is moved there, and back in the answer."""

from .calls import Call, Output, Question, laid_out, moved_axis


def translate_softmax(call: Call) -> tuple[Question, ...]:
    """The call on the last axis."""
    call.check_known({"input"}, {"output"}, {"axis"})
    layout = moved_axis(call.attributes.get("axis", -1), -1)
    x = layout.to_ours(call.inputs["input"])
    return (Question("softmax", laid_out({"x": x}), {"output": Output("output", layout)}),)
