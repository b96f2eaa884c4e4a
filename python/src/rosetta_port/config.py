"""The options that many ops share: mask and scores of attention, dropout, rotation, sparse patterns."""

from typing import Any

import numpy as np

from .errors import InvalidConfig, InvalidRequest
from .library import Library
from .read import (
    Config,
    Reader,
    boolean,
    due_within,
    fields,
    integer,
    integer_or_none,
    list_of,
    number,
    number_or_none,
    pick,
    text,
    window,
)
from .tensors import Tensors, optional, require

# By type of scaling: the class, the fields that it must have, those that it may have.
LENGTHS: dict[str, Reader] = {"factor": number, "original_length": integer}
SCALINGS: dict[str, tuple[str, dict[str, Reader], dict[str, Reader]]] = {
    "linear": ("LinearScaling", {"factor": number}, {}),
    "dynamic": ("DynamicScaling", LENGTHS, {"length": integer}),
    "yarn": (
        "YarnScaling",
        LENGTHS,
        {"beta_fast": number, "beta_slow": number, "attention_factor": number, "truncate": boolean},
    ),
    "llama3": ("Llama3Scaling", LENGTHS, {"low_freq_factor": number, "high_freq_factor": number}),
    "longrope": (
        "LongRopeScaling",
        {"short_factor": list_of(number), "long_factor": list_of(number), "original_length": integer},
        {"factor": number, "attention_factor": number, "length": integer},
    ),
}

# By type of pattern: the class, and the fields that it must have.
SIDES: dict[str, Reader] = {"left": integer, "right": integer}
BIGBIRD: dict[str, Reader] = dict.fromkeys(("block", "window", "global", "random", "seed"), integer)
PATTERNS: dict[str, tuple[str, dict[str, Reader]]] = {
    "window": ("Window", SIDES),
    "dilated": ("Dilated", SIDES | {"dilation": integer}),
    "strided": ("Strided", {"stride": integer}),
    "fixed": ("Fixed", {"stride": integer, "summary": integer}),
    "global": ("Global", SIDES | {"tokens": list_of(integer)}),
    "bigbird": ("BigBird", BIGBIRD),
    "blocks": ("Blocks", {"block": integer}),
}


def attention_options(library: Library, config: Config, tensors: Tensors) -> dict[str, Any]:
    """mask, bias, scale, softcap and dropout of sdpa and mha; arrays come from tensors of fixed names."""
    shared = _options(
        library,
        config,
        keep=optional(tensors, "mask"),
        bias=optional(tensors, "bias"),
        kv_lengths=optional(tensors, "kv_lengths"),
        q_offset=q_offset(library, config, tensors),
    )
    return shared | dropout_option(library, config)


def step_options(library: Library, step: Config, tensors: Tensors) -> dict[str, Any]:
    """The same for an attend step, which names its tensors; `q_offset` may be a number, too."""
    named = isinstance(step.get("q_offset"), str)
    offset = library.convert(named_tensor(step, "q_offset", tensors)) if named else None
    return _options(
        library,
        step,
        keep=named_tensor(step, "mask", tensors),
        bias=named_tensor(step, "bias", tensors),
        kv_lengths=None,
        q_offset=offset if named else integer_or_none(step, "q_offset"),
    )


def named_tensor(step: Config, field: str, tensors: Tensors) -> np.ndarray | None:
    """The tensor that a step names in an optional field."""
    name = step.get(field)
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"{field}: expected the name of a tensor, got {name}")
    return None if name is None else require(tensors, name)


def q_offset(library: Library, config: Config, tensors: Tensors) -> Any:
    """The number in config or the library's array of the tensor, not both."""
    offsets = optional(tensors, "q_offset")
    refuse_both("q_offset", config.get("q_offset"), offsets)
    return integer_or_none(config, "q_offset") if offsets is None else library.convert(offsets)


def refuse_both(name: str, value: Any, tensor: Any) -> None:
    """Raises InvalidConfig for an option that is there as a number and as a tensor."""
    if value is not None and tensor is not None:
        raise InvalidConfig(f"{name}: expected a tensor or a number in config, got both")


def dropout_option(library: Library, config: Config) -> dict[str, Any]:
    """`dropout`, where config has it."""
    if config.get("dropout") is None:
        return {}
    value = fields("dropout", config["dropout"])
    return {"dropout": library.api.Dropout(**due_within("dropout", value, p=number, seed=integer))}


def rope_option(library: Library, config: Config) -> Any:
    """A Rope of the fields that are there."""
    options = pick(config, base=number, interleaved=boolean, rotary_dim=integer, offset=integer)
    if config.get("scaling") is not None:
        options["scaling"] = _scaling(library, fields("scaling", config["scaling"]))
    return library.api.Rope(**options)


def rope_object(library: Library, config: Config) -> Any:
    """The Rope of the object `rope` in config; None where it is absent."""
    return None if config.get("rope") is None else rope_option(library, fields("rope", config["rope"]))


def pattern_option(library: Library, value: Any, tensors: Tensors) -> Any:
    """The pattern of an object with `type`."""
    value = fields("pattern", value)
    kind = due_within("pattern", value, type=text)["type"]
    if kind not in PATTERNS:
        raise InvalidConfig(f"pattern: expected one of {', '.join(PATTERNS)}, got {kind}")
    name, readers = PATTERNS[kind]
    found = due_within(f"pattern {kind}", value, **readers)
    if kind == "bigbird":
        found["global_blocks"] = found.pop("global")  # a keyword of Python
    if kind == "blocks":
        found["mask"] = library.convert(require(tensors, "block_mask"))
    return getattr(library.api, name)(**found)


def _scaling(library: Library, value: Config) -> Any:
    kind = due_within("scaling", value, type=text)["type"]
    if kind not in SCALINGS:
        raise InvalidConfig(f"scaling: expected one of {', '.join(SCALINGS)}, got {kind}")
    name, must, may = SCALINGS[kind]
    found = due_within(f"scaling {kind}", value, **must) | pick(value, **may)
    return getattr(library.api, name)(**found)


def _options(
    library: Library, config: Config, *, keep: Any, bias: Any, kv_lengths: Any, q_offset: Any
) -> dict[str, Any]:
    mask = library.api.Mask(
        keep=library.convert(keep),
        kv_lengths=library.convert(kv_lengths),
        q_offset=q_offset,
        **pick(config, causal=boolean, window=window),
    )
    return {
        "mask": mask,
        "bias": library.convert(bias),
        "scale": number_or_none(config, "scale"),
        "softcap": number_or_none(config, "softcap"),
    }
