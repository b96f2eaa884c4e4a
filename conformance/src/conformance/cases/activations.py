"""The suite `norms`, its second half: GELU and SwiGLU."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .draft import Draft, Other

HALF = ("f16", "bf16")
INF, NAN = np.inf, np.nan
GRID = np.concatenate([np.arange(-10, 10.25, 0.25), [-1e-3, 1e-3, -1e-6, 1e-6]])


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _gelu()
    yield from _swiglu()
    yield from _errors()


def _case(op: str, name: str, inputs: dict[str, Any], note: str, *flags: str, **more: Any) -> Draft:
    arrays = {key: np.array(x, float) for key, x in inputs.items()}
    return Draft(f"norms/{op}/{name}", op, arrays, flags=flags, note=note, **more)


def _gelu() -> Iterator[Draft]:
    for form, config in (("exact", {}), ("tanh", {"approximate": "tanh"})):
        more: dict[str, Any] = {"config": config}
        one = "0.841345 and -0.158655" if form == "exact" else "0.841192 and -0.158808"
        yield _case("gelu", f"by-hand/{form}", {"x": [0, 1, -1]}, f"0, {one}", "ByHand", "GeluForm", **more)
        yield _case("gelu", f"grid/{form}", {"x": GRID}, "from -10 to 10, and near 0", "GeluForm", **more)
        yield _case(
            "gelu",
            f"large/{form}",
            {"x": [50, -50, 1e4, -1e4, 1e20, -1e20]},
            "x itself, and 0",
            "Overflow",
            **more,
        )
        yield _case(
            "gelu",
            f"special/{form}",
            {"x": [NAN, INF, -INF, 0.0, -0.0]},
            "NaN, inf, -inf · 0 = NaN, 0, 0",
            "VisibleNaN",
            **more,
        )
        yield _case(
            "gelu",
            f"half/{form}",
            {"x": GRID},
            "computed in f32, rounded once",
            "HalfInside",
            dtypes=HALF,
            **more,
        )
        yield _case(
            "gelu",
            f"half-special/{form}",
            {"x": [NAN, INF, 60000, -60000, 1e-7]},
            "the cube of 60000 does not fit f16",
            "HalfInside",
            dtypes=HALF,
            **more,
        )
    for size in ((1,), (17,), (2, 3, 5), (0,), (2, 0, 3), ()):
        name = "x".join(map(str, size)) or "scalar"
        yield _case(
            "gelu",
            f"size/{name}",
            {"x": 2 * Draw(f"norms/gelu/{name}").normal(*size)},
            "any shape",
            "VectorTail",
        )
    yield _case(
        "gelu",
        "explicit-none",
        {"x": [2.0, -2]},
        "approximate none by name",
        "AbsentIsNotZero",
        config={"approximate": "none"},
    )


def _swiglu() -> Iterator[Draft]:
    ln3 = float(np.log(3))
    yield _case(
        "swiglu",
        "by-hand/ln-3",
        {"a": [ln3, -ln3, 0], "b": [4, 4, 7]},
        "sigmoid 3/4, 1/4, 1/2: 3 ln 3, -ln 3, 0",
        "ByHand",
    )
    yield _case(
        "swiglu", "by-hand/order", {"a": [0.0, 5], "b": [5.0, 0]}, "0 on both sides: no order shows", "ByHand"
    )
    yield _case(
        "swiglu",
        "by-hand/gate",
        {"a": [1.0, -20], "b": [-20.0, 1]},
        "the first is the gate: -14.62, -4e-8",
        "GateOrder",
    )
    yield _case(
        "swiglu",
        "alpha/by-hand",
        {"a": [ln3 / 2], "b": [8]},
        "alpha 2: 3/4 · ln 3 / 2 · 8 = 3 ln 3",
        "AbsentIsNotZero",
        config={"alpha": 2},
    )
    yield _case(
        "swiglu",
        "alpha/zero",
        {"a": [3.0, -5], "b": [2.0, 4]},
        "alpha 0 is 0: a b / 2",
        "AbsentIsNotZero",
        config={"alpha": 0},
    )
    yield _case(
        "swiglu",
        "alpha/negative",
        {"a": GRID, "b": np.ones(GRID.size)},
        "alpha -1: a sigmoid(-a)",
        "GateOrder",
        config={"alpha": -1},
    )
    yield _case(
        "swiglu",
        "alpha/1.702",
        {"a": GRID, "b": np.ones(GRID.size)},
        "the sigmoid form of GELU",
        "AbsentIsNotZero",
        config={"alpha": 1.702},
    )
    draw = Draw("norms/swiglu/random")
    yield _case("swiglu", "grid", {"a": GRID, "b": GRID[::-1]}, "from -10 to 10", "GateOrder")
    yield _case(
        "swiglu",
        "large",
        {"a": [100, -100, 1000, -1000, 1e4], "b": [1, 1, 2, 2, -3]},
        "e^1000 overflows on the way to 0",
        "Overflow",
    )
    yield _case(
        "swiglu",
        "special",
        {"a": [NAN, INF, -INF, 1, 1], "b": [1, 1, 1, NAN, INF]},
        "NaN, inf, -inf · 0 = NaN, NaN, inf",
        "VisibleNaN",
    )
    for size in ((1,), (2, 3, 5), (33,), (0,), (2, 0)):
        name = "x".join(map(str, size))
        yield _case(
            "swiglu",
            f"size/{name}",
            {"a": 3 * draw.normal(*size), "b": draw.normal(*size)},
            "any shape",
            "VectorTail",
        )
    yield _case(
        "swiglu",
        "half/grid",
        {"a": GRID, "b": GRID[::-1]},
        "computed in f32, rounded once",
        "HalfInside",
        dtypes=HALF,
    )
    yield _case(
        "swiglu",
        "half/product",
        {"a": [300, 0.01, -5], "b": [0.5, 0.01, 300]},
        "a half-typed sigmoid would lose digits",
        "HalfInside",
        dtypes=HALF,
    )
    yield _case(
        "swiglu",
        "half/overflow",
        {"a": [300, -9, 70], "b": [400, 400, 1000]},
        "a product beyond 65504 is infinite in f16",
        "HalfInside",
        dtypes=HALF,
    )


def _errors() -> Iterator[Draft]:
    def refused(op: str, name: str, error: str, note: str, inputs: dict[str, Any], **config: Any) -> Draft:
        return Draft(
            f"norms/{op}/error/{name}", op, inputs, config, flags=("ErrorCode",), note=note, error=error
        )

    ones = np.ones((2, 3))
    yield refused("gelu", "form", "invalid_config", "an unknown form", {"x": ones}, approximate="sigmoid")
    yield refused("gelu", "form-bool", "invalid_config", "true is no form", {"x": ones}, approximate=True)
    yield refused("gelu", "dtype", "dtype_mismatch", "integers", {"x": np.ones(3, np.int64)})
    yield refused("gelu", "missing", "invalid_request", "nothing to activate", {})
    yield refused(
        "swiglu", "shape", "shape_mismatch", "a and b of different shapes", {"a": ones, "b": np.ones((3, 2))}
    )
    yield refused(
        "swiglu", "broadcast", "shape_mismatch", "b is not broadcast", {"a": ones, "b": np.ones((1, 3))}
    )
    yield refused("swiglu", "dtype-b", "dtype_mismatch", "another float type", {"a": ones, "b": Other(ones)})
    yield refused(
        "swiglu", "alpha", "invalid_config", "an alpha that is no number", {"a": ones, "b": ones}, alpha="1"
    )
    yield refused("swiglu", "missing-b", "invalid_request", "no value beside the gate", {"a": ones})
