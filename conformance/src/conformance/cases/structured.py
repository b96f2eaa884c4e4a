"""The suite `structured`: several annotations of one sequence, and how much they overlap."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other

ALL = ("output", "weights", "penalty")
HALF = ("f16", "bf16")
NAN = np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _sizes()
    yield from _lengths()
    yield from _halves()
    yield from _errors()


def structured_inputs(name: str, B: int, T: int, C: int, A: int, R: int) -> Tensors:
    """h, w_1 and w_2 of these sizes; w_2 large enough for weights that are far from equal."""
    draw = Draw(name)
    return {
        "h": draw.normal(B, T, C),
        "w_1": draw.normal(A, C) / np.sqrt(max(C, 1)),
        "w_2": 3 * draw.normal(R, A) / np.sqrt(max(A, 1)),
    }


def _case(name: str, inputs: dict[str, Any], note: str, *flags: str, **more: Any) -> Draft:
    return Draft(f"structured/{name}", "structured", inputs, want=ALL, flags=flags, note=note, **more)


def _by_hand() -> Iterator[Draft]:
    h = np.array([[[1.0, 2], [3, 6]]])
    none = {"w_1": np.zeros((1, 2)), "w_2": np.zeros((2, 1))}
    yield _case(
        "by-hand/uniform",
        {"h": h} | none,
        "weights 1/2: rows [2, 4]; A Aᵀ is 1/2 everywhere: penalty 4 · 1/4 = 1",
        "ByHand",
    )
    yield _case(
        "by-hand/one-position",
        {"h": h[:, :1], "w_1": np.ones((1, 2)), "w_2": np.array([[1.0], [-1]])},
        "one position has weight 1 in both: A Aᵀ is all 1, the penalty 2",
        "ByHand",
    )
    ln2 = float(np.log(2))
    sharp = {"h": np.array([[[0.0], [20]]]), "w_1": np.ones((1, 1)), "w_2": np.array([[ln2]])}
    yield _case(
        "by-hand/one-third",
        sharp,
        "tanh 0 and 1: scores 0 and ln 2, weights 1/3 and 2/3: 40/3; penalty (5/9 - 1)² = 16/81",
        "ByHand",
    )
    apart = {"h": np.array([[[20.0], [-20]]]), "w_1": np.ones((1, 1)), "w_2": np.array([[40.0], [-40]])}
    yield _case(
        "by-hand/apart", apart, "each annotation has a position of its own: 20, -20, no penalty", "ByHand"
    )
    rows = {"h": h, "w_1": np.array([[0.5, -1.0]]), "w_2": np.array([[2.0]])}
    yield _case("by-hand/out-in", rows, "w_1 is (A, C): hidden tanh(0.5 - 2), tanh(1.5 - 6)", "AxisOrder")


def _sizes() -> Iterator[Draft]:
    for B, T, C, A, R in (
        (1, 1, 1, 1, 1),
        (2, 3, 4, 5, 6),
        (2, 5, 3, 1, 2),
        (1, 16, 5, 7, 3),
        (1, 17, 8, 9, 4),
        (3, 4, 2, 6, 1),
        (1, 33, 3, 4, 2),
        (1, 65, 2, 3, 2),
        (1, 7, 17, 16, 5),
        (2, 9, 5, 4, 3),
        (1, 12, 6, 3, 2),
    ):
        name = f"size/{B}x{T}x{C}x{A}x{R}"
        yield _case(
            name,
            structured_inputs(f"structured/{name}", B, T, C, A, R),
            f"T {T}, C {C}, A {A}, R {R}",
            "VectorTail",
            "AxisOrder",
        )
    for name, sizes in {
        "no-positions": (2, 0, 3, 4, 2),
        "no-rows": (0, 3, 3, 4, 2),
    }.items():
        yield _case(
            f"empty/{name}",
            structured_inputs(f"structured/{name}", *sizes),
            "without positions the weights are empty, the penalty is R",
            "EmptyKeys",
        )


def _lengths() -> Iterator[Draft]:
    inputs = structured_inputs("structured/lengths", 3, 5, 4, 3, 2)
    yield _case(
        "lengths/mixed", inputs | {"kv_lengths": np.array([5, 2, 1])}, "padding weighs 0", "RowIndependence"
    )
    yield _case(
        "lengths/empty",
        inputs | {"kv_lengths": np.array([3, 0, 5])},
        "a row without positions: 0, and a penalty of R",
        "FullyMaskedRow",
    )
    poisoned = structured_inputs("structured/poison", 2, 4, 3, 3, 2)
    poisoned["h"][0, 2:] = NAN
    yield _case(
        "poison",
        poisoned | {"kv_lengths": np.array([2, 4])},
        "NaN in the padding changes nothing",
        "HiddenPoison",
    )
    seen = structured_inputs("structured/nan", 2, 4, 3, 3, 2)
    seen["h"][1, 1, 0] = NAN
    yield _case("nan", seen, "NaN in a position makes its row of the batch NaN, and no other", "VisibleNaN")
    large = structured_inputs("structured/large", 1, 4, 3, 3, 2)
    large["w_2"] *= 400
    yield _case("large", large, "scores of hundreds", "Overflow")


def _halves() -> Iterator[Draft]:
    for name, sizes in {
        "small": (1, 3, 4, 3, 2),
        "batch": (2, 5, 3, 4, 3),
        "long": (1, 40, 2, 3, 2),
        "one": (1, 1, 2, 2, 2),
    }.items():
        inputs = structured_inputs(f"structured/half/{name}", *sizes)
        yield _case(f"half/{name}", inputs, "hidden layer, scores and sums in f32", "HalfInside", dtypes=HALF)
    inputs = structured_inputs("structured/half/lengths", 2, 4, 3, 3, 2) | {"kv_lengths": np.array([4, 1])}
    yield _case("half/lengths", inputs, "with padding", "HalfInside", "RowIndependence", dtypes=HALF)


def _errors() -> Iterator[Draft]:
    def refused(name: str, error: str, note: str, inputs: dict[str, Any]) -> Draft:
        base: dict[str, Any] = dict(structured_inputs("structured/error", 2, 4, 3, 5, 2)) | inputs
        base = {key: x for key, x in base.items() if x is not None}
        return Draft(
            f"structured/error/{name}", "structured", base, flags=("ErrorCode",), note=note, error=error
        )

    zeros = np.zeros
    yield refused("rank-h", "shape_mismatch", "h of rank 2", {"h": zeros((4, 3))})
    yield refused("rank-w", "shape_mismatch", "w_1 of rank 1", {"w_1": zeros(3)})
    yield refused("width", "shape_mismatch", "w_1 over other channels", {"w_1": zeros((5, 4))})
    yield refused("hidden", "shape_mismatch", "w_2 over another hidden size", {"w_2": zeros((2, 4))})
    yield refused("lengths-size", "shape_mismatch", "one length for two rows", {"kv_lengths": np.array([3])})
    yield refused(
        "lengths-float", "dtype_mismatch", "lengths are integers", {"kv_lengths": np.array([3.0, 4.0])}
    )
    yield refused(
        "lengths-beyond", "invalid_config", "more positions than there are", {"kv_lengths": np.array([3, 5])}
    )
    yield refused(
        "lengths-negative", "invalid_config", "a negative length", {"kv_lengths": np.array([-1, 3])}
    )
    yield refused("dtype-w", "dtype_mismatch", "w_2 of another float type", {"w_2": Other(zeros((2, 5)))})
    yield refused("dtype-h", "dtype_mismatch", "integers", {"h": zeros((2, 4, 3), np.int64)})
    yield refused("missing-w", "invalid_request", "no second layer", {"w_2": None})
