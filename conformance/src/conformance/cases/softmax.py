"""The suite `softmax`."""

from collections.abc import Iterator
from math import log

import numpy as np

from ..inputs import Draw
from .draft import Draft, Other

BOTH = ("output", "lse")
INF, NAN = np.inf, np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _sizes()
    yield from _special_values()
    yield from _errors()


def _case(name: str, x: object, note: str, *flags: str, **more: object) -> Draft:
    fields = {"want": BOTH, **more}
    return Draft(f"softmax/{name}", "softmax", {"x": np.array(x, float)}, flags=flags, note=note, **fields)  # type: ignore[arg-type]


def _by_hand() -> Iterator[Draft]:
    yield _case("by-hand/one-third", [[0, log(2)]], "weights 1/3 and 2/3, lse ln 3", "ByHand", "LseNatural")
    yield _case("by-hand/uniform", [[7, 7, 7, 7]], "four weights of 1/4, lse 7 + ln 4", "ByHand")
    yield _case("by-hand/one-slot", [[5.0]], "weight 1, lse 5", "ByHand")
    yield _case(
        "by-hand/rank-1", [0, log(3)], "rank 1: lse has rank 0; weights 1/4 and 3/4", "ByHand", "AxisOrder"
    )
    x = [[[0, log(2)], [log(3), 0]], [[log(4), 0], [0, 0]]]
    yield _case("by-hand/last-axis", x, "the last axis, and no other", "ByHand", "AxisOrder")


def _sizes() -> Iterator[Draft]:
    for n in (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 257):
        draw = Draw(f"softmax/size/{n}")
        x = 3 * draw.normal(3, n)
        x[:, -1] = x.max(axis=-1) + 1  # the last slot weighs most
        yield _case(f"size/{n}", x, "the largest logit in the last slot", "VectorTail")
    draw = Draw("softmax/rank-5")
    x = draw.normal(2, 1, 3, 4, 5)
    yield _case("rank-5", x, "five axes of different sizes", "AxisOrder")
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 4)):
        name = "x".join(map(str, shape))
        yield _case(
            f"empty/{name}",
            np.zeros(shape),
            "an empty axis: empty weights; lse -inf where a row exists",
            "EmptyKeys",
        )


def _special_values() -> Iterator[Draft]:
    yield _case("hidden/one", [[1, -INF, 2]], "-inf weighs exactly 0", "FullyMaskedRow")
    yield _case(
        "hidden/all",
        [[-INF, -INF], [0, log(2)]],
        "a row of -inf: weights 0, lse -inf; its neighbour is untouched",
        "FullyMaskedRow",
    )
    yield _case(
        "hidden/first",
        [[-INF] * 17 + [1.0, 2.0]],
        "a whole vector of hidden slots first",
        "FullyMaskedRow",
        "VectorTail",
    )
    yield _case("nan/one", [[1, NAN, 2], [1, 2, 3]], "NaN makes its row NaN, and no other", "VisibleNaN")
    yield _case(
        "nan/last",
        [[1.0] * 16 + [NAN]],
        "NaN in the last slot, behind a whole vector",
        "VisibleNaN",
        "VectorTail",
    )
    yield _case(
        "nan/with-hidden",
        [[NAN, -INF, 2]],
        "the hidden slot stays exactly 0 in a row of NaN",
        "VisibleNaN",
        "HiddenPoison",
    )
    yield _case(
        "inf/one", [[INF, 0], [0, 0]], "+inf makes its row NaN: there is no limit to take", "InfiniteScore"
    )
    yield _case(
        "inf/two", [[INF, INF, -INF]], "two of them as well; the hidden slot stays 0", "InfiniteScore"
    )
    yield _case(
        "large/positive",
        [[1000, 999], [1e4, 9.99e3]],
        "exp without the maximum overflows",
        "Overflow",
    )
    yield _case(
        "large/negative",
        [[-1e5, -1e5 + log(2)]],
        "a maximum that starts at 0 underflows to 0/0",
        "Overflow",
    )
    yield _case("large/spread", [[-1e30, 0, 1e30]], "weights 0, 0 and 1", "Overflow")
    yield _case(
        "large/max", [[3e38, -3e38, 3e38]], "the difference overflows to -inf, its weight is 0", "Overflow"
    )
    yield _case("shift", [[1, 2, 3], [101, 102, 103]], "both rows have the same weights", "Shift")
    draw = Draw("softmax/long")
    yield _case("long", 4 * draw.normal(2, 5000), "a sum of 5000 terms", "VectorTail")
    draw = Draw("softmax/unaligned-file")
    yield _case(
        "unaligned-file",
        draw.normal(3, 5),
        "the file's header is 8n + 7 bytes long, its tensors stand in reverse order",
        "FileLayout",
        unaligned_file=True,
    )


def _errors() -> Iterator[Draft]:
    yield _case("error/rank-0", 1.0, "a scalar has no last axis", "ErrorCode", error="shape_mismatch")
    integers = Draft(
        "softmax/error/integers",
        "softmax",
        {"x": np.arange(6).reshape(2, 3)},
        flags=("ErrorCode",),
        note="integers are no logits",
        error="dtype_mismatch",
    )
    yield integers
    yield Draft(
        "softmax/error/missing",
        "softmax",
        {"y": Other(np.zeros(3))},
        flags=("ErrorCode",),
        note="no tensor of the name x",
        error="invalid_request",
    )
