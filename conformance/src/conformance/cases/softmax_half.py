"""The suite `softmax`, second part: f16 and bf16, which are computed in f32 and rounded once."""

from collections.abc import Iterator
from math import log
from typing import Any

import numpy as np

from ..inputs import Draw
from .draft import Draft

HALVES = ("f16", "bf16")
INF, NAN = np.inf, np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""

    def case(name: str, x: Any, note: str, *flags: str) -> Draft:
        inputs = {"x": np.array(x, float)}
        flags = ("HalfInside", *flags)
        return Draft(
            f"softmax/half/{name}", "softmax", inputs, {}, ("output", "lse"), flags, note, dtypes=HALVES
        )

    yield case(
        "one-third",
        [[0, log(2)]],
        "nearly 1/3 and 2/3, and an lse of f32: ln 2 is rounded in the input",
        "ByHand",
    )
    uniform = np.zeros((1, 3000))
    yield case(
        "uniform", uniform, "a sum of 3000 ones: bf16 stops counting at 256, f16 at 2048", "LseNatural"
    )
    draw = Draw("softmax/half")
    for n in (7, 16, 17, 65, 257):
        yield case(f"size/{n}", 3 * draw.normal(2, n), "sizes around a vector", "VectorTail")
    yield case(
        "large", [[1000, 999, -1000], [-6e4, -6e4, -5.9e4]], "exp without the maximum overflows", "Overflow"
    )
    yield case("small", [[0, -17, -12, -9]], "weights among the subnormals of f16", "Subnormal")
    special = [[NAN, -INF, 1], [INF, 0, 1], [-INF, -INF, -INF], [0, -INF, 1]]
    yield case(
        "special",
        special,
        "NaN, infinities and an empty row",
        "VisibleNaN",
        "InfiniteScore",
        "FullyMaskedRow",
    )
    yield case("empty", np.zeros((2, 0)), "an empty axis", "EmptyKeys")
