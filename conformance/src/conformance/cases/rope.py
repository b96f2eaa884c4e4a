"""The suite `positions`, second part: rotary embeddings without scaling."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .draft import Draft, Other

ALL = ("output", "cos", "sin")
OUT = ("output",)
HALVES = ("f16", "bf16")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _sizes()
    yield from _positions()
    yield from _tables()
    yield from _halves()
    yield from _errors()


def _case(name: str, inputs: Any, note: str, *flags: str, **config: Any) -> Draft:
    dtypes, want = config.pop("dtypes", ("f32", "f64")), config.pop("want", ALL)
    return Draft(f"positions/rope/{name}", "rope", inputs, config, want, flags, note, dtypes=dtypes)


def _by_hand() -> Iterator[Draft]:
    x = np.array([1.0, 2, 3, 4]).reshape(1, 1, 1, 4)
    flags = ("ByHand", "RopePairing")
    note = "position 1: [-1.984111, 1.959901, 2.462378, 4.019800]"
    yield _case("by-hand/half-split", {"x": x}, note, *flags, offset=1)
    note = "position 1: [-1.142640, 1.922076, 2.959851, 4.029800]"
    yield _case("by-hand/interleaved", {"x": x}, note, *flags, offset=1, interleaved=True)
    yield _case("by-hand/identity", {"x": x}, "position 0 turns nothing", "ByHand")
    one = {"x": np.ones((1, 1, 3, 2)) * [1.0, 0]}
    yield _case("by-hand/one-pair", one, "[1, 0] at 0, 1, 2: [cos p, sin p]", "ByHand", "RopePosition")
    far = np.zeros((1, 1, 1, 32))
    far[..., 1] = 1
    note = "position 1857, pair 1: angle 1044.267841, cosine 0.306693; -0.408 with an angle in f16"
    yield _case("by-hand/far", {"x": far}, note, "ByHand", "AnglePrecision", offset=1857)


def _sizes() -> Iterator[Draft]:
    for D in (2, 4, 6, 8, 10, 14, 16, 18, 30, 32, 34, 66):
        for interleaved in (False, True):
            name = f"head-size/{D}{'-interleaved' if interleaved else ''}"
            x = {"x": Draw(f"rope/{name}").normal(1, 2, 1, D)}
            yield _case(name, x, f"D = {D}", "VectorTail", "RopePairing", interleaved=interleaved, offset=2)
    for T in (1, 2, 7, 16, 17, 65):
        x = {"x": Draw(f"rope/length/{T}").normal(2, 1, T, 6)}
        yield _case(f"length/{T}", x, f"T = {T}", "VectorTail")
    x = {"x": Draw("rope/axes").normal(2, 3, 5, 4)}
    yield _case("axes", x, "positions run along T, not along the heads", "AxisOrder")
    for name, shape in {"rows": (0, 2, 3, 4), "heads": (2, 0, 3, 4), "positions": (2, 3, 0, 4)}.items():
        yield _case(
            f"empty/{name}", {"x": np.zeros(shape)}, "an empty result of the right shape", "EmptyKeys"
        )
    for D, R in ((8, 4), (10, 2), (9, 6), (7, 4), (34, 16)):
        for interleaved in (False, True):
            name = f"partial/{D}-{R}{'-interleaved' if interleaved else ''}"
            x = {"x": Draw(f"rope/{name}").normal(1, 2, 3, D)}
            note = f"{R} of {D} channels turn, with the frequencies of {R}"
            yield _case(
                name, x, note, "RopePartial", "RopePairing", rotary_dim=R, interleaved=interleaved, offset=5
            )
    x = {"x": Draw("rope/partial/all").normal(1, 2, 3, 6)}
    yield _case("partial/all", x, "R = D is all of it", "RopePartial", rotary_dim=6)
    poison = Draw("rope/partial/poison").normal(1, 1, 2, 6)
    poison[..., 4:] = np.nan
    yield _case(
        "partial/poison",
        {"x": poison},
        "NaN that passes through stays where it is",
        "RopePartial",
        rotary_dim=4,
    )


def _positions() -> Iterator[Draft]:
    x = Draw("rope/positions").normal(2, 3, 4, 8)
    for offset in (0, 1, 100, 4095, 131071):
        yield _case(
            f"offset/{offset}",
            {"x": x},
            f"positions from {offset} on",
            "RopePosition",
            "AnglePrecision",
            offset=offset,
        )
    rows = np.array([[0, 1, 2, 3], [7, 3, 3, 11]])
    flags = ("RopePosition", "RowIndependence")
    yield _case(
        "positions/any",
        {"x": x, "positions": rows},
        "positions of each row, repeated and out of order",
        *flags,
    )
    padded = np.array([[0, 1, 2, 3], [0, 0, 0, 1]])
    yield _case("positions/padded", {"x": x, "positions": padded}, "a left-padded row", *flags, "LeftPadding")
    yield _case(
        "positions/interleaved",
        {"x": x, "positions": rows},
        "the same, interleaved",
        *flags,
        interleaved=True,
    )
    far = np.array([[1857, 4095, 32767, 131071], [257, 511, 10**6, 10**7]])
    yield _case(
        "positions/far",
        {"x": x, "positions": far},
        "far positions, angles in float64",
        "AnglePrecision",
        *flags,
    )
    before = np.array([[-3, -2, -1, 0], [-100, 5, 0, -1]])
    yield _case(
        "positions/negative", {"x": x, "positions": before}, "before 0 pairs turn the other way", *flags
    )
    nothing = {"base": None, "rotary_dim": None, "offset": None, "scaling": None, "interleaved": None}
    yield _case("null", {"x": x}, "null is absent, everywhere", "AbsentIsNotZero", **nothing)
    floats = {"rotary_dim": 4.0, "offset": 2.0, "base": 100}
    yield _case("whole-floats", {"x": x}, "4.0 is 4 where a whole number is due", "RopePartial", **floats)
    yield _case("base/500000", {"x": x}, "the base of Llama 3", "AbsentIsNotZero", base=500000, offset=9)
    yield _case("base/small", {"x": x}, "a base below 1", "AbsentIsNotZero", base=0.5, offset=3)
    special = np.array([[np.inf, 1, 2, 3], [np.nan, 1, 2, 3]]).reshape(1, 1, 2, 4)
    yield _case(
        "special",
        {"x": special},
        "NaN and infinity stay in their own pairs",
        "VisibleNaN",
        offset=1,
        want=OUT,
    )


def _tables() -> Iterator[Draft]:
    draw = Draw("rope/tables")
    x, cos, sin = draw.normal(2, 3, 4, 8), draw.normal(9, 4), draw.normal(9, 4)
    tables = {"x": x, "cos": cos, "sin": sin}
    flags = ("RopePosition", "RopePairing")
    yield _case("tables/plain", tables, "rows 0 to 3", *flags)
    yield _case("tables/interleaved", tables, "the same, interleaved", *flags, interleaved=True)
    yield _case("tables/offset", tables, "the last four rows", *flags, offset=5)
    rows = {"positions": np.array([[8, 0, 3, 3], [1, 2, 4, 7]])}
    yield _case("tables/positions", tables | rows, "rows by position", *flags, "RowIndependence")
    short = tables | {"cos": cos[:, :2], "sin": sin[:, :2]}
    yield _case("tables/partial", short, "two pairs of eight channels", *flags, "RopePartial", rotary_dim=4)
    empty = {"x": np.zeros((2, 3, 0, 8)), "cos": np.zeros((0, 4)), "sin": np.zeros((0, 4))}
    yield _case("tables/empty", empty, "no positions, no rows", "EmptyKeys")


def _halves() -> Iterator[Draft]:
    x = Draw("rope/half").normal(2, 2, 5, 8)
    yield _case("half/plain", {"x": x}, "turned in f32, rounded once", "HalfInside", offset=3, dtypes=HALVES)
    yield _case(
        "half/interleaved",
        {"x": x},
        "the same, interleaved",
        "HalfInside",
        "RopePairing",
        interleaved=True,
        dtypes=HALVES,
    )
    far = {"x": x, "positions": np.array([[257, 1857, 2049, 4095, 65521], [1, 3, 300, 32769, 131071]])}
    note = "positions that neither half type holds"
    yield _case("half/far", far, note, "AnglePrecision", "RopePosition", dtypes=HALVES)
    wide = {"x": Draw("rope/half/wide").normal(1, 3, 2, 64)}
    yield _case("half/wide", wide, "D = 64", "HalfInside", "VectorTail", offset=4000, dtypes=HALVES)
    yield _case(
        "half/partial", {"x": x}, "four channels pass unchanged", "RopePartial", rotary_dim=4, dtypes=HALVES
    )
    draw = Draw("rope/half/tables")
    tables = {"x": x, "cos": draw.normal(6, 4), "sin": draw.normal(6, 4)}
    yield _case("half/tables", tables, "tables of halves, widened", "HalfInside", offset=1, dtypes=HALVES)


def _errors() -> Iterator[Draft]:
    x = np.zeros((2, 3, 4, 8))

    def refused(name: str, error: str, note: str, inputs: Any = None, **config: Any) -> Draft:
        inputs = {key: value for key, value in ({"x": x} | (inputs or {})).items() if value is not None}
        return Draft(
            f"positions/rope/error/{name}",
            "rope",
            inputs,
            config,
            flags=("ErrorCode",),
            note=note,
            error=error,
        )

    table, positions = np.zeros((9, 4)), np.zeros((2, 4), np.int64)
    shape, dtype, config = "shape_mismatch", "dtype_mismatch", "invalid_config"
    yield refused("rank", shape, "x of rank 3", {"x": x[0]})
    yield refused("odd", shape, "an odd head size without a rotary dimension", {"x": np.zeros((2, 3, 4, 7))})
    yield refused("rotary-odd", config, "half a pair", rotary_dim=3)
    yield refused("rotary-zero", config, "no pair at all", rotary_dim=0)
    yield refused("rotary-large", config, "more than there is", rotary_dim=10)
    yield refused("rotary-fraction", config, "a whole number", rotary_dim=4.5)
    yield refused("positions-shape", shape, "positions of another length", {"positions": positions[:, :3]})
    yield refused("positions-rank", shape, "positions of rank 1", {"positions": positions[0]})
    yield refused("positions-float", dtype, "positions are whole", {"positions": np.zeros((2, 4))})
    yield refused("positions-and-offset", config, "positions twice", {"positions": positions}, offset=1)
    yield refused("offset-fraction", config, "a position between positions", offset=0.25)
    yield refused("base-zero", config, "base 0", base=0)
    yield refused("base-negative", config, "a negative base", base=-10000)
    yield refused("base-text", config, "a base is a number", base="10000")
    yield refused("interleaved-number", config, "true or false", interleaved=1)
    yield refused("tables-beyond", config, "position 9 of 9 rows", {"cos": table, "sin": table}, offset=6)
    below = {"cos": table, "sin": table, "positions": positions - 1}
    yield refused("tables-below", config, "a negative position has no row, not the last one", below)
    yield refused("tables-base", config, "tables and a base", {"cos": table, "sin": table}, base=10000)
    scaled = {"scaling": {"type": "linear", "factor": 2}}
    yield refused("tables-scaling", config, "tables and a scaling", {"cos": table, "sin": table}, **scaled)
    yield refused(
        "tables-width", shape, "tables of another width", {"cos": table[:, :3], "sin": table[:, :3]}
    )
    yield refused("tables-rows", shape, "tables of two lengths", {"cos": table, "sin": table[:8]})
    yield refused("tables-rank", shape, "a table of rank 3", {"cos": table[None], "sin": table[None]})
    yield refused(
        "tables-dtype", dtype, "tables of another float type", {"cos": Other(table), "sin": Other(table)}
    )
    yield refused("integers", dtype, "integers do not turn", {"x": np.zeros((2, 3, 4, 8), np.int64)})
    yield refused("missing-x", "invalid_request", "nothing to turn", {"x": None})
