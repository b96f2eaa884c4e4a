"""The frequencies of rotary embeddings, pair by pair, as exponentials; and what the scalings make of them."""

import math
from typing import Any

import numpy as np

BASE = 10000.0


def frequencies(config: dict[str, Any], R: int, length: int) -> np.ndarray:
    """(R/2,): the angle per position of each pair. length: the largest position of the row and 1."""
    base = BASE if config.get("base") is None else float(config["base"])
    plain = [math.exp(-math.log(base) * (2 * i / R)) for i in range(R // 2)]
    scaling = config.get("scaling")
    if scaling is None:
        return np.array(plain)
    kind = scaling["type"]
    if kind == "linear":
        return np.array([f / scaling["factor"] for f in plain])
    if kind in ("dynamic", "longrope"):
        length = length if scaling.get("length") is None else int(scaling["length"])
        beyond = length > scaling["original_length"]
    if kind == "dynamic":
        return np.array(plain) if not beyond or R == 2 else _dynamic(scaling, base, R, length)
    if kind == "longrope":
        factors = scaling["long_factor" if beyond else "short_factor"]
        return np.array([f / factor for f, factor in zip(plain, factors, strict=True)])
    share = {"yarn": yarn_share, "llama3": llama3_share}[kind](scaling, base, R)
    factor = scaling["factor"]
    return np.array([f * (1 - part + part / factor) for f, part in zip(plain, share, strict=True)])


def _dynamic(scaling: dict[str, Any], base: float, R: int, length: int) -> np.ndarray:
    factor = scaling["factor"]
    stretch = factor * length / scaling["original_length"] - (factor - 1)
    ln_base = math.log(base) + math.log(stretch) * R / (R - 2)
    return np.array([math.exp(-ln_base * (2 * i / R)) for i in range(R // 2)])


def yarn_share(scaling: dict[str, Any], base: float, R: int) -> list[float]:
    """How much of each pair is interpolated: 0 below the pair that turns beta_fast times in L0 positions, then more."""
    low, high = yarn_ends(scaling, base, R)
    return [min(max((i - low) / (high - low), 0), 1) for i in range(R // 2)]


def yarn_ends(scaling: dict[str, Any], base: float, R: int) -> tuple[float, float]:
    """The pairs, as real numbers, between which the share grows from 0 to 1."""

    def pair_that_turns(times: float) -> float:
        return R / 2 * math.log(scaling["original_length"] / (2 * math.pi * times), base)

    low, high = (
        pair_that_turns(given(scaling, "beta_fast", 32)),
        pair_that_turns(given(scaling, "beta_slow", 1)),
    )
    if given(scaling, "truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = (min(max(end, 0), R - 1) for end in (low, high))
    return low, high + 0.001 if low == high else high


def llama3_share(scaling: dict[str, Any], base: float, R: int) -> list[float]:
    """How much of each pair is interpolated: all of it below low_freq_factor turns in L0 positions, then less."""
    low, high = given(scaling, "low_freq_factor", 1), given(scaling, "high_freq_factor", 4)
    turns = [
        scaling["original_length"] * math.exp(-math.log(base) * (2 * i / R)) / (2 * math.pi)
        for i in range(R // 2)
    ]
    return [min(max((high - n) / (high - low), 0), 1) for n in turns]


def attention_factor(config: dict[str, Any]) -> float:
    """What multiplies cosine and sine."""
    scaling = config.get("scaling") or {"type": "none"}
    if scaling["type"] not in ("yarn", "longrope"):
        return 1.0
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor = given(scaling, "factor", 1)
    if factor <= 1:
        return 1.0
    if scaling["type"] == "yarn":
        return 0.1 * math.log(factor) + 1
    return math.sqrt(1 + math.log(factor, scaling["original_length"]))


def given(options: dict[str, Any], name: str, default: Any) -> Any:
    """The option, or its default where it is absent or null."""
    return default if options.get(name) is None else options[name]
