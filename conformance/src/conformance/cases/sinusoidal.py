"""The suite `positions`, first part: sinusoidal tables."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .draft import Draft

BOTH = ("output", "table")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _sizes()
    yield from _options()
    yield from _errors()


def _case(name: str, inputs: Any, note: str, *flags: str, **config: Any) -> Draft:
    dtypes = config.pop("dtypes", ("f32", "f64"))
    return Draft(
        f"positions/sinusoidal/{name}", "sinusoidal", inputs, config, BOTH, flags, note, dtypes=dtypes
    )


def _by_hand() -> Iterator[Draft]:
    two = {"x": np.zeros((1, 2, 2))}
    yield _case(
        "by-hand/one-pair",
        two,
        "position 0: [0, 1]; position 1: [sin 1, cos 1] = [0.841471, 0.540302]",
        "ByHand",
    )
    four = {"x": np.zeros((1, 2, 4))}
    note = "position 1: [sin 1, cos 1, sin 0.01, cos 0.01]"
    yield _case("by-hand/interleaved", four, note, "ByHand", "RopePairing")
    note = "position 1: [sin 1, sin 0.01, cos 1, cos 0.01]"
    yield _case("by-hand/halves", four, note, "ByHand", "RopePairing", halves=True)
    added = {"x": np.array([[[10.0, 20, 30, 40]]])}
    yield _case("by-hand/added", added, "position 0 adds [0, 1, 0, 1]: [10, 21, 30, 41]", "ByHand")


def _sizes() -> Iterator[Draft]:
    for C in (2, 4, 6, 8, 14, 16, 18, 34, 64, 66):
        x = {"x": Draw(f"sinusoidal/width/{C}").normal(2, 3, C)}
        yield _case(f"width/{C}", x, f"C = {C}", "VectorTail")
    for T in (1, 2, 7, 17, 65):
        x = {"x": Draw(f"sinusoidal/length/{T}").normal(1, T, 6)}
        yield _case(f"length/{T}", x, f"T = {T}", "VectorTail", halves=True)
    for name, shape in {"rows": (0, 3, 4), "positions": (2, 0, 4), "channels": (2, 3, 0)}.items():
        yield _case(
            f"empty/{name}", {"x": np.zeros(shape)}, "an empty result of the right shape", "EmptyKeys"
        )


def _options() -> Iterator[Draft]:
    x = Draw("sinusoidal/options").normal(2, 3, 8)
    yield _case("offset", {"x": x}, "positions 5, 6, 7", "RopePosition", offset=5)
    yield _case("offset-zero", {"x": x}, "an explicit 0", "AbsentIsNotZero", offset=0)
    positions = {"x": x, "positions": np.array([[0, 1, 2], [0, 0, 1]])}
    yield _case(
        "positions", positions, "a left-padded row counts from its first token", "RopePosition", "LeftPadding"
    )
    far = {"x": x, "positions": np.array([[1857, 4095, 32767], [257, 131071, 10**6]])}
    yield _case("far", far, "angles in float64: in f32 they are off by 1e-3", "AnglePrecision")
    yield _case("far-halves", far, "the same in the other layout", "AnglePrecision", halves=True)
    yield _case("base", {"x": x}, "another base", "AbsentIsNotZero", base=500.0)
    yield _case("base-one", {"x": x}, "base 1: all pairs turn alike", "RopePosition", base=1, offset=3)
    halves: dict[str, Any] = {"dtypes": ("f16", "bf16")}
    yield _case("half/plain", {"x": x}, "added in f32, rounded once", "HalfInside", **halves)
    note = "bf16 has no 257: the angle must not be rounded"
    yield _case("half/far", far, note, "HalfInside", "AnglePrecision", **halves)
    wide = {"x": Draw("sinusoidal/half").normal(1, 5, 34)}
    yield _case(
        "half/halves",
        wide,
        "the other layout",
        "HalfInside",
        "RopePairing",
        halves=True,
        offset=300,
        **halves,
    )


def _errors() -> Iterator[Draft]:
    def refused(name: str, error: str, note: str, inputs: Any = None, **config: Any) -> Draft:
        inputs = {"x": np.zeros((2, 3, 4))} | (inputs or {})
        inputs = {key: value for key, value in inputs.items() if value is not None}
        return Draft(
            f"positions/sinusoidal/error/{name}",
            "sinusoidal",
            inputs,
            config,
            flags=("ErrorCode",),
            note=note,
            error=error,
        )

    positions = np.zeros((2, 3), np.int64)
    yield refused(
        "odd", "shape_mismatch", "an odd width has a channel without a pair", {"x": np.zeros((2, 3, 5))}
    )
    yield refused("rank", "shape_mismatch", "x of rank 2", {"x": np.zeros((3, 4))})
    yield refused("positions-shape", "shape_mismatch", "positions of one row", {"positions": positions[:1]})
    yield refused("positions-rank", "shape_mismatch", "positions of rank 1", {"positions": positions[0]})
    yield refused("positions-float", "dtype_mismatch", "positions are whole", {"positions": np.zeros((2, 3))})
    yield refused(
        "integers", "dtype_mismatch", "integers are no embeddings", {"x": np.zeros((2, 3, 4), np.int64)}
    )
    yield refused("both", "invalid_config", "positions and an offset", {"positions": positions}, offset=2)
    yield refused("base-zero", "invalid_config", "base 0 has no logarithm", base=0)
    yield refused("base-negative", "invalid_config", "nor has a negative one", base=-2.0)
    yield refused("base-text", "invalid_config", "a base is a number", base="10000")
    yield refused("offset-fraction", "invalid_config", "a position between positions", offset=0.5)
    yield refused("halves-number", "invalid_config", "true or false", halves=1)
    yield refused("missing-x", "invalid_request", "nothing to add to", {"x": None})
