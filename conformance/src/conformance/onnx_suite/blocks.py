"""The operators around attention: LayerNormalization, RMSNormalization, Gelu and SwiGLU."""

from typing import Any

import numpy as np

from .calls import Call, Layout, Output, Question, TranslationError, joined_axes, laid_out

NORM_ATTRIBUTES = {"axis", "epsilon", "stash_type"}


def translate_layer_normalization(call: Call) -> tuple[Question, ...]:
    """The axes from `axis` on become one, in x, weight and bias alike; mean and inv_std get them back as ones."""
    call.check_known({"X", "Scale", "B"}, {"Y", "Mean", "InvStdDev"}, NORM_ATTRIBUTES)
    if len(call.wanted) > 1 and call.dtype != "f32":
        raise TranslationError(f"{call.operator}: Mean and InvStdDev: expected X in f32, got {call.dtype}")
    axis, layout, config = normalised_axes(call)
    shape = call.inputs["X"].shape
    inputs = {"x": layout.to_ours(call.inputs["X"])}
    for theirs, ours in (("Scale", "weight"), ("B", "bias")):
        if theirs in call.inputs:
            inputs[ours] = joined_weight(call, theirs, shape[axis:])
    reduced = joined_statistic(shape, axis)
    outputs = {
        "Y": Output("output", layout),
        "Mean": Output("mean", reduced),
        "InvStdDev": Output("inv_std", reduced),
    }
    wanted = {name: outputs[name] for name in call.wanted}
    return (Question("layer_norm", laid_out(inputs), wanted, config),)


def translate_rms_normalization(call: Call) -> tuple[Question, ...]:
    """As LayerNormalization, without a mean and a bias."""
    call.check_known({"X", "scale"}, {"Y"}, NORM_ATTRIBUTES)
    axis, layout, config = normalised_axes(call)
    x = call.inputs["X"]
    inputs = {"x": layout.to_ours(x), "weight": joined_weight(call, "scale", x.shape[axis:])}
    return (Question("rms_norm", laid_out(inputs), {"Y": Output("output", layout)}, config),)


def normalised_axes(call: Call) -> tuple[int, Layout, dict[str, Any]]:
    """The first of the axes that are normalised together, their layout, and the config."""
    if call.attributes.get("stash_type", 1) != 1:
        raise TranslationError(f"{call.operator}: stash_type: expected 1 (float)")
    x, axis = call.inputs["X"], call.attributes.get("axis", -1)
    if not -x.ndim <= axis < x.ndim:
        raise TranslationError(f"{call.operator}: axis: expected one of rank {x.ndim}, got {axis}")
    axis %= x.ndim
    config = {"eps": call.attributes["epsilon"]} if "epsilon" in call.attributes else {}
    return axis, joined_axes(x.shape, axis), config


def joined_weight(call: Call, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight over all normalised axes, as one axis; ONNX lets it be broadcast to them."""
    weight = call.inputs[name]
    try:
        return np.broadcast_to(weight, shape).reshape(-1)
    except ValueError:
        raise TranslationError(
            f"{call.operator}: {name}: expected a shape that broadcasts to {shape}, got {weight.shape}"
        ) from None


def joined_statistic(shape: tuple[int, ...], axis: int) -> Layout:
    """What is one number for all normalised axes: without them here, with ones in their place there."""
    return Layout(
        lambda x: x.reshape(shape[:axis]),
        lambda x: x.reshape(*shape[:axis], *(1,) * (len(shape) - axis)),
    )


def translate_gelu(call: Call) -> tuple[Question, ...]:
    """The same two formulas."""
    call.check_known({"X"}, {"Y"}, {"approximate"})
    config = {"approximate": call.choice("approximate", "none", {"none", "tanh"})}
    return (Question("gelu", laid_out({"x": call.inputs["X"]}), {"Y": Output("output")}, config),)


def translate_swiglu(call: Call) -> tuple[Question, ...]:
    """The same formula."""
    call.check_known({"A", "B"}, {"Y"}, {"alpha"})
    inputs = {"a": call.inputs["A"], "b": call.inputs["B"]}
    config = {"alpha": call.attributes["alpha"]} if "alpha" in call.attributes else {}
    return (Question("swiglu", laid_out(inputs), {"Y": Output("output")}, config),)
