"""Features and costs of what puts positions into a model: sinusoidal, rope, alibi, relative_bias."""

from collections.abc import Mapping

import numpy as np

from .arguments import Config, Tensors

SCALINGS = {"linear", "dynamic", "yarn", "llama3", "longrope"}


def sinusoidal_features(config: Config, inputs: Tensors) -> set[str]:
    """The options that are given."""
    return (
        _named(config, "offset", "base")
        | _positions(inputs)
        | ({"halves"} if config.get("halves") else set())
    )


def rope_features(config: Config, inputs: Tensors) -> set[str]:
    """The options that are given, tables in place of angles, and the kind of scaling."""
    found = _named(config, "offset", "base", "rotary_dim") | _positions(inputs)
    found |= {"interleaved"} if config.get("interleaved") else set()
    found |= {"tables"} if {"cos", "sin"} & set(inputs) else set()
    scaling = config.get("scaling")
    return found | ({str(scaling.get("type"))} & SCALINGS if isinstance(scaling, Mapping) else set())


def alibi_features(config: Config, inputs: Tensors) -> set[str]:
    """An offset."""
    return _named(config, "q_offset")


def relative_bias_features(config: Config, inputs: Tensors) -> set[str]:
    """An offset, one direction only, a largest distance."""
    found = _named(config, "q_offset", "max_distance")
    return found | ({"unidirectional"} if config.get("bidirectional") is False else set())


def sinusoidal_flops(config: Config, inputs: Tensors) -> int:
    """An addition an element; the table counts as made before."""
    return int(inputs["x"].size)


def rope_flops(config: Config, inputs: Tensors) -> int:
    """Four products and two additions a pair; the turns count as made before."""
    x = inputs["x"]
    R = x.shape[3] if config.get("rotary_dim") is None else int(config["rotary_dim"])
    return 3 * int(np.prod(x.shape[:3])) * R


def alibi_flops(config: Config, inputs: Tensors) -> int:
    """A product and an addition a score."""
    return 2 * int(inputs["scores"].size)


def relative_bias_flops(config: Config, inputs: Tensors) -> int:
    """An addition a score."""
    return int(inputs["scores"].size)


def _named(config: Config, *names: str) -> set[str]:
    return {name for name in names if config.get(name) is not None}


def _positions(inputs: Tensors) -> set[str]:
    return {"positions"} & set(inputs)
