"""ONNX's TensorScatter as our cache_write: an update of a cache at an index of its own in each row."""

from .calls import Call, Output, Question, TranslationError, laid_out, moved_axis


def translate_tensor_scatter(call: Call) -> tuple[Question, ...]:
    """The axis of the positions goes to the last place but one, where a cache has it."""
    call.check_known({"past_cache", "update", "write_indices"}, {"present_cache"}, {"axis", "mode"})
    cache, update = call.inputs["past_cache"], call.inputs["update"]
    axis = call.attributes.get("axis", -2)
    axis += cache.ndim if axis < 0 else 0
    if not 1 <= axis < cache.ndim or cache.ndim < 3:
        raise TranslationError(
            f"{call.operator}: axis: expected one beside the batch in a cache of rank 3 or more, got {axis}"
        )
    layout = moved_axis(axis, -2)
    inputs = {"cache": layout.to_ours(cache), "update": layout.to_ours(update)}
    if "write_indices" in call.inputs:
        inputs["write_indices"] = call.inputs["write_indices"]
    config = {"circular": True} if call.choice("mode", "linear", {"linear", "circular"}) == "circular" else {}
    return (Question("cache_write", laid_out(inputs), {"present_cache": Output("output", layout)}, config),)
