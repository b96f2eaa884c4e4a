"""The options that sdpa, mha and a cache's attend share, from JSON to the library's arguments.

Only JSON types are checked here, and whether the numbers make sense is left to the library.
"""

from typing import Any

import numpy as np

from .errors import InvalidConfig, InvalidRequest
from .library import Library
from .tensors import Tensors, optional, require

FARTHEST = 2**62


def attention_options(library: Library, config: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    """mask, bias, scale and softcap of sdpa and mha; arrays come from tensors of fixed names."""
    q_offset = optional(tensors, "q_offset")
    if q_offset is not None and config.get("q_offset") is not None:
        raise InvalidConfig("q_offset: expected a tensor or a number in config, got both")
    return _options(
        library,
        config,
        keep=optional(tensors, "mask"),
        bias=optional(tensors, "bias"),
        kv_lengths=optional(tensors, "kv_lengths"),
        q_offset=integer_or_none(config, "q_offset") if q_offset is None else q_offset,
    )


def step_options(library: Library, step: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    """The same for an attend step, which names its tensors; `q_offset` may be a number, too."""
    named = isinstance(step.get("q_offset"), str)
    return _options(
        library,
        step,
        keep=named_tensor(step, "mask", tensors),
        bias=named_tensor(step, "bias", tensors),
        kv_lengths=None,
        q_offset=named_tensor(step, "q_offset", tensors) if named else integer_or_none(step, "q_offset"),
    )


def named_tensor(step: dict[str, Any], field: str, tensors: Tensors) -> np.ndarray | None:
    """The tensor that a step names in an optional field."""
    name = step.get(field)
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"{field}: expected the name of a tensor, got {name}")
    return None if name is None else require(tensors, name)


def number_or_none(config: dict[str, Any], name: str) -> float | None:
    """A number, or None where it is absent or null."""
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidConfig(f"{name}: expected a number, got {value}")
    try:
        return float(value)
    except OverflowError as error:
        raise InvalidConfig(f"{name}: expected a finite number, got {value}") from error


def integer_or_none(config: dict[str, Any], name: str) -> int | None:
    """An integer, or None where it is absent or null."""
    value = config.get(name)
    if value is not None and whole(value) is None:
        raise InvalidConfig(f"{name}: expected an integer, got {value}")
    return whole(value)


def whole(value: Any) -> int | None:
    """The integer that a JSON number is, written 2 or 2.0; None for any other value.

    One beyond ±FARTHEST, where no position is, becomes that: sums with it stay within 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
        return None
    return int(max(-FARTHEST, min(value, FARTHEST)))


def _options(
    library: Library, config: dict[str, Any], *, keep: Any, bias: Any, kv_lengths: Any, q_offset: Any
) -> dict[str, Any]:
    causal, window = config.get("causal"), config.get("window")
    if causal is not None and not isinstance(causal, bool):
        raise InvalidConfig(f"causal: expected true or false, got {causal}")
    if window is not None:
        good = isinstance(window, list) and all(side is None or whole(side) is not None for side in window)
        if not good or len(window) != 2:
            raise InvalidConfig(f"window: expected a pair of integers or nulls, got {window}")
        window = [whole(side) for side in window]
    mask = library.api.Mask(
        keep=library.convert(keep),
        causal=bool(causal),
        window=None if window is None else tuple(window),
        kv_lengths=library.convert(kv_lengths),
        q_offset=q_offset if isinstance(q_offset, int) else library.convert(q_offset),
    )
    return {
        "mask": mask,
        "bias": library.convert(bias),
        "scale": number_or_none(config, "scale"),
        "softcap": number_or_none(config, "softcap"),
    }
