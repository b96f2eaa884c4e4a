"""The suite `positions`, third part: the five scalings of rotary embeddings."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .draft import Draft

ALL = ("output", "cos", "sin")
HALVES = ("f16", "bf16")
YARN = {"type": "yarn", "factor": 4.0, "original_length": 32}
LLAMA3 = {"type": "llama3", "factor": 8.0, "original_length": 64}
SHORT, LONG = [1.0, 1.1, 1.3, 1.7], [1.0, 2.0, 5.0, 11.0]
LONGROPE = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_length": 16}


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _by_length()
    yield from _blends()
    yield from _errors()


def _case(
    name: str,
    scaling: dict[str, Any],
    note: str,
    *flags: str,
    D: int = 8,
    positions: Any = None,
    **config: Any,
) -> Draft:
    """Two rows of four positions, unless positions say otherwise."""
    dtypes = config.pop("dtypes", ("f32", "f64"))
    rows = np.array([[0, 1, 7, 63], [2, 3, 5, 13]] if positions is None else positions)
    inputs = {"x": Draw(f"rope/{name}").normal(rows.shape[0], 1, rows.shape[1], D), "positions": rows}
    config |= {"scaling": scaling}
    return Draft(
        f"positions/rope/{name}", "rope", inputs, config, ALL, ("RopeScaling", *flags), note, dtypes=dtypes
    )


def _by_hand() -> Iterator[Draft]:
    x = {"x": np.ones((1, 1, 5, 2)) * [1.0, 0]}
    linear = {"scaling": {"type": "linear", "factor": 4}}
    note = "position 4 turns by 1: [0.540302, 0.841471]"
    yield Draft("positions/rope/linear/by-hand", "rope", x, linear, ALL, ("ByHand", "RopeScaling"), note)
    yarn = {"scaling": {"type": "yarn", "factor": 2, "original_length": 8, "attention_factor": 3}}
    note = "position 0 is not turned, but 3 times as long"
    yield Draft("positions/rope/yarn/by-hand", "rope", x, yarn, ALL, ("ByHand", "RopeScaling"), note)


def _by_length() -> Iterator[Draft]:
    for factor in (1, 2.5, 0.5):
        yield _case(
            f"linear/{factor}", {"type": "linear", "factor": factor}, "every frequency over the factor"
        )
    dynamic = {"type": "dynamic", "factor": 2.0, "original_length": 16}
    note = "row 0 is long and has a base of its own; row 1 is short and keeps the plain one"
    yield _case("dynamic/rows", dynamic, note, "RowIndependence")
    yield _case("dynamic/length", dynamic | {"length": 100}, "a stated length, for both rows", "RopePosition")
    yield _case(
        "dynamic/length-short", dynamic | {"length": 16}, "L = L0: no scaling, whatever the positions"
    )
    edge = [[0, 15, 3], [0, 16, 3]]
    yield _case("dynamic/edge", dynamic, "16 positions fit, 17 do not", "WindowBoundary", positions=edge)
    yield _case("dynamic/one-pair", dynamic, "R = 2 has no base to change", "RopePartial", D=2)
    yield _case("dynamic/partial", dynamic, "R, not D, in the exponent", "RopePartial", D=10, rotary_dim=6)
    empty = np.zeros((2, 0), np.int64)
    yield _case("dynamic/empty", dynamic, "no position has no largest one", "EmptyKeys", positions=empty)
    yield _case(
        "longrope/rows", LONGROPE, "row 0 takes the long factors, row 1 the short ones", "RowIndependence"
    )
    yield _case(
        "longrope/length", LONGROPE | {"length": 17}, "a stated length, for both rows", "RopePosition"
    )
    yield _case(
        "longrope/edge", LONGROPE, "16 positions are short, 17 long", "WindowBoundary", positions=edge
    )
    yield _case("longrope/factor", LONGROPE | {"factor": 8.0}, "cosine and sine times sqrt(1 + ln 8 / ln 16)")
    yield _case(
        "longrope/factor-small", LONGROPE | {"factor": 0.5}, "a factor up to 1 changes no length of vectors"
    )
    given = LONGROPE | {"factor": 8.0, "attention_factor": 1.25}
    yield _case("longrope/attention-factor", given, "a given factor wins", "AbsentIsNotZero")
    yield _case("longrope/interleaved", LONGROPE, "interleaved pairs", "RopePairing", interleaved=True)
    yield _case("longrope/empty", LONGROPE, "no position has no largest one", "EmptyKeys", positions=empty)
    for name, scaling in (("dynamic", dynamic), ("longrope", LONGROPE)):
        yield _case(f"{name}/half", scaling, "angles in float64, rounded late", "HalfInside", dtypes=HALVES)


def _blends() -> Iterator[Draft]:
    wide: dict[str, Any] = {"D": 32, "positions": [[0, 1, 13, 63]]}
    note = "0.1 ln 4 + 1 on cosine and sine; fast pairs kept, slow ones over 4, a ramp between"
    yield _case("yarn/plain", YARN, note, **wide)
    yield _case("yarn/interleaved", YARN, "interleaved pairs", "RopePairing", interleaved=True, **wide)
    yield _case("yarn/smooth", YARN | {"truncate": False}, "ends of the ramp not rounded", **wide)
    yield _case("yarn/betas", YARN | {"beta_fast": 8, "beta_slow": 0.5}, "another ramp", **wide)
    yield _case("yarn/factor-one", YARN | {"factor": 1.0}, "s = 1: nothing changes", **wide)
    yield _case("yarn/factor-small", YARN | {"factor": 0.5}, "s < 1: attention factor 1", **wide)
    yield _case(
        "yarn/attention-factor", YARN | {"attention_factor": 1.0}, "a given 1 wins", "AbsentIsNotZero", **wide
    )
    yield _case(
        "yarn/equal-ends",
        YARN | {"beta_fast": 1, "beta_slow": 1, "truncate": False},
        "a step, 0.001 wide",
        **wide,
    )
    yield _case(
        "yarn/long",
        YARN | {"original_length": 4096, "factor": 40.0},
        "a real model's sizes",
        D=64,
        positions=[[3, 5000]],
    )
    yield _case("yarn/base", YARN, "another base", base=150000.0, **wide)
    yield _case(
        "yarn/short",
        YARN | {"original_length": 4},
        "L0 < 2π beta_slow: both ends of the ramp would lie below pair 0, and are kept there",
        D=64,
        positions=[[0, 1, 13, 63]],
    )
    yield _case("yarn/partial", YARN, "the ramp over R, not D", "RopePartial", rotary_dim=16, **wide)
    yield _case("llama3/plain", LLAMA3, "fast pairs kept, slow ones over 8, a blend between", **wide)
    yield _case("llama3/interleaved", LLAMA3, "interleaved pairs", "RopePairing", interleaved=True, **wide)
    ends = LLAMA3 | {"low_freq_factor": 0.5, "high_freq_factor": 8}
    yield _case("llama3/ends", ends, "a wider blend", **wide)
    real = LLAMA3 | {"factor": 32, "original_length": 8192}
    far = [[1, 8192, 100000]]
    yield _case(
        "llama3/real",
        real,
        "Llama 3.2's numbers, far out",
        "AnglePrecision",
        D=64,
        positions=far,
        base=500000.0,
    )
    yield _case("llama3/partial", LLAMA3, "the frequencies of R", "RopePartial", rotary_dim=16, **wide)
    for name, scaling in (("yarn", YARN), ("llama3", LLAMA3)):
        yield _case(f"{name}/half", scaling, "blended in float64", "HalfInside", dtypes=HALVES, **wide)


def _errors() -> Iterator[Draft]:
    def refused(name: str, note: str, scaling: Any) -> Draft:
        inputs = {"x": np.zeros((1, 2, 3, 8))}
        return Draft(
            f"positions/rope/error/scaling-{name}",
            "rope",
            inputs,
            {"scaling": scaling},
            flags=("ErrorCode",),
            note=note,
            error="invalid_config",
        )

    def without(scaling: dict[str, Any], name: str) -> dict[str, Any]:
        return {key: value for key, value in scaling.items() if key != name}

    yield refused("unknown", "no such scaling", {"type": "ntk", "factor": 2})
    yield refused("no-type", "a scaling of no type", {"factor": 2})
    yield refused("number", "a scaling is an object", 2.0)
    yield refused("factor-missing", "linear without a factor", {"type": "linear"})
    yield refused("factor-zero", "over 0", {"type": "linear", "factor": 0})
    yield refused("factor-negative", "over a negative number", {"type": "linear", "factor": -2})
    yield refused("factor-text", "a factor is a number", {"type": "linear", "factor": "2"})
    yield refused(
        "dynamic-length-missing", "dynamic without the original length", {"type": "dynamic", "factor": 2}
    )
    yield refused("yarn-factor-missing", "yarn without a factor", without(YARN, "factor"))
    yield refused("yarn-length-missing", "yarn without the original length", without(YARN, "original_length"))
    yield refused("llama3-factor-missing", "llama3 without a factor", without(LLAMA3, "factor"))
    yield refused("longrope-long-missing", "no long factors", without(LONGROPE, "long_factor"))
    yield refused("longrope-short", "three factors for four pairs", LONGROPE | {"short_factor": SHORT[:3]})
    yield refused("longrope-zero", "a factor of 0", LONGROPE | {"long_factor": [1.0, 2.0, 0.0, 4.0]})
