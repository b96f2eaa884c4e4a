"""The suite `flash`, second part: the merge of two partial results."""

from collections.abc import Iterator
from math import log
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other

BOTH = ("output", "lse")
INF, NAN = np.inf, np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _shapes()
    yield from _special()
    yield from _halves()
    yield from _errors()


def _states(a: Any, a_lse: Any, b: Any, b_lse: Any) -> Tensors:
    names = ("a_output", "a_lse", "b_output", "b_lse")
    return {name: np.array(x, float) for name, x in zip(names, (a, a_lse, b, b_lse), strict=True)}


def _case(name: str, inputs: Any, note: str, *flags: str, exact: bool = False, **more: Any) -> Draft:
    return Draft(
        f"flash/merge/{name}", "merge", inputs, {}, BOTH, flags, note, exact=BOTH if exact else (), **more
    )


def _by_hand() -> Iterator[Draft]:
    part = _states([[0]], [0], [[4]], [log(3)])
    yield _case(
        "by-hand/quarter", part, "weights 1/4 and 3/4: 3, lse ln 4; 3.32 with base 2", "ByHand", "LseNatural"
    )
    equal = _states([[1, 2]], [5], [[3, 6]], [5])
    yield _case("by-hand/equal", equal, "the mean [2, 4], lse 5 + ln 2", "ByHand", "Shift")
    x = [[0.1, -7, 1e-30]]
    for name, states in (
        ("first", _states([[NAN, INF, 5]], [-INF], x, [0.3])),
        ("second", _states(x, [0.3], [[-INF, NAN, 5]], [-INF])),
    ):
        yield _case(
            f"empty/{name}", states, "the other state, bit for bit", "EmptyState", "HiddenPoison", exact=True
        )
    both = _states([[NAN, 1]], [-INF], [[2, INF]], [-INF])
    yield _case("empty/both", both, "output 0, lse -inf", "EmptyState", "FullyMaskedRow", exact=True)
    rows = _states([[1], [2], [3]], [-INF, 0, -INF], [[4], [5], [6]], [0, -INF, -INF])
    yield _case(
        "empty/rows", rows, "[4, 2, 0]: every row for itself", "EmptyState", "RowIndependence", exact=True
    )


def _shapes() -> Iterator[Draft]:
    for shape in ((2, 3, 4, 5), (3, 7), (1, 1, 1, 1), (5, 2, 1, 2, 3)):
        draw = Draw(f"merge/shape/{shape}")
        inputs = _states(
            draw.normal(*shape), draw.normal(*shape[:-1]), draw.normal(*shape), draw.normal(*shape[:-1])
        )
        yield _case(f"shape/{'x'.join(map(str, shape))}", inputs, "leading axes of any number", "AxisOrder")
    for n in (1, 7, 8, 9, 16, 17, 33):
        draw = Draw(f"merge/size/{n}")
        inputs = _states(draw.normal(3, n), 3 * draw.normal(3), draw.normal(3, n), 3 * draw.normal(3))
        yield _case(f"size/{n}", inputs, f"Dv = {n}", "VectorTail")
    for none in ((0, 4), (3, 0), (2, 0, 5)):
        zeros = _states(np.zeros(none), np.zeros(none[:-1]), np.ones(none), np.zeros(none[:-1]))
        yield _case(f"empty/{'x'.join(map(str, none))}", zeros, "an empty result", "EmptyKeys")
    inputs = _states([2.5, 1], 0.5, [-1, 0], -0.25)
    yield _case("shape/one-row", inputs, "no leading axis: lse of rank 0", "AxisOrder")


def _special() -> Iterator[Draft]:
    far = _states([[1, 2]] * 4, [1000, -1000, 3e4, -3e4], [[3, 4]] * 4, [999, -1001, -3e4, 3e4])
    yield _case("large", far, "e^1000 is no number: subtract the maximum first", "Overflow")
    spread = _states([[1, 2]] * 3, [0, 50, 200], [[1e3, -1e3]] * 3, [40, 0, 0])
    yield _case("spread", spread, "weights that all but vanish", "Overflow")
    for name, value in (("nan", NAN), ("infinity", INF)):
        inputs = _states([[1, 2]] * 3, [value, 0, 0], [[3, 4]] * 3, [0, value, 0])
        flag = "VisibleNaN" if name == "nan" else "InfiniteScore"
        yield _case(f"{name}", inputs, "output and lse of that row are NaN, whichever state it is in", flag)
        beside = _states([[1, 2]] * 2, [value, -INF], [[3, 4]] * 2, [-INF, value])
        yield _case(f"{name}-beside-empty", beside, "beside an empty state as well", flag, "EmptyState")
    inside = _states([[NAN, 2]], [0], [[3, 4]], [0])
    yield _case("nan-inside", inside, "NaN in a state that counts: its channel is NaN", "VisibleNaN")


def _halves() -> Iterator[Draft]:
    halves: dict[str, Any] = {"dtypes": ("f16", "bf16")}
    draw = Draw("merge/half")
    inputs = _states(draw.normal(3, 4, 5), 3 * draw.normal(3, 4), draw.normal(3, 4, 5), 3 * draw.normal(3, 4))
    yield _case("half/random", inputs, "outputs of halves, lse of f32", "HalfInside", **halves)
    fine = _states(
        [[1, 2]] * 2,
        [100.001, 0.0001],
        [[3, 4]] * 2,
        [100, 0],
    )
    yield _case("half/fine", fine, "an lse that no half type holds", "HalfInside", "LseNatural", **halves)
    empty = _states([[NAN, 5]], [-INF], [[0.1, -7]], [0.3])
    yield _case("half/empty", empty, "the other state, bit for bit", "EmptyState", exact=True, **halves)


def _errors() -> Iterator[Draft]:
    def refused(name: str, error: str, note: str, inputs: dict[str, Any]) -> Draft:
        base: dict[str, Any] = dict(_states(np.zeros((2, 3)), np.zeros(2), np.zeros((2, 3)), np.zeros(2)))
        inputs = {key: x for key, x in (base | inputs).items() if x is not None}
        return Draft(
            f"flash/merge/error/{name}", "merge", inputs, {}, flags=("ErrorCode",), note=note, error=error
        )

    shape, dtype = "shape_mismatch", "dtype_mismatch"
    yield refused("rows", shape, "three rows and two", {"b_output": np.zeros((3, 3))})
    yield refused("channels", shape, "four channels and three", {"b_output": np.zeros((2, 4))})
    yield refused("lse-rows", shape, "a log-sum-exp a channel", {"a_lse": np.zeros((2, 3))})
    yield refused("lse-length", shape, "three of them for two rows", {"b_lse": np.zeros(3)})
    yield refused(
        "rank-0", shape, "a scalar has no channels", {"a_output": np.array(1.0), "b_output": np.array(1.0)}
    )
    yield refused("dtype", dtype, "outputs of two float types", {"b_output": Other(np.zeros((2, 3)))})
    yield refused("dtype-lse", dtype, "an lse of another float type", {"a_lse": Other(np.zeros(2))})
    yield refused("integers", dtype, "integers", {"a_output": np.zeros((2, 3), np.int64)})
    yield refused("missing", "invalid_request", "one state without a log-sum-exp", {"b_lse": None})
