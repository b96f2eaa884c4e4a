"""The suite `cast`: every way in which a rounding can go wrong, from and to each type."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .draft import Draft

EVERY = ("f32", "f64", "f16", "bf16")
INF, NAN = np.inf, np.nan
DIGITS = {"f16": 10, "bf16": 7, "f32": 23}  # bits behind the leading one
LOWEST = {"f16": -14, "bf16": -126, "f32": -126}  # exponent of the smallest normal number


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    for to in DIGITS:
        yield from _narrowing(to)
    for to in EVERY:
        yield from _anything(to)
    yield from _broken_numbers()
    yield from _every_code()
    yield from _shapes()
    yield from _errors()


def _case(name: str, x: Any, to: str, note: str, *flags: str, dtypes: tuple[str, ...] = EVERY) -> Draft:
    return Draft(
        f"cast/{name}",
        "cast",
        {"x": np.array(x, float)},
        {"to": to},
        flags=flags or ("HalfRounding",),
        note=note,
        exact=("output",),
        dtypes=dtypes,
    )


def _narrowing(to: str) -> Iterator[Draft]:
    half = 2.0 ** -(DIGITS[to] + 1)  # half a step at 1
    ties = np.array([1 + half, 1 + 3 * half, 2 + 2 * half, 2 + 6 * half, 1 - half / 2, 4 - 4 * half])
    yield _case(
        f"to-{to}/ties",
        [ties, -ties],
        to,
        "half a step above an even and above an odd value: to the even one, either sign",
    )
    beside = [ties * (1 - 2.0**-50), ties * (1 + 2.0**-50)]
    yield _case(
        f"to-{to}/beside-ties", beside, to, "just below and just above half a step: no tie", dtypes=("f64",)
    )
    step = 2.0 ** (LOWEST[to] - DIGITS[to])  # the smallest subnormal
    small = np.array([1, 0.5, 1.5, 2.5, 0.5 + 2.0**-40, 0.5 - 2.0**-40, 7.25, 2.0 ** DIGITS[to] - 0.5]) * step
    yield _case(
        f"to-{to}/subnormal",
        [small, -small],
        to,
        "the smallest step, halves of it (0 keeps its sign), and a carry into the normal numbers",
        "HalfRounding",
        "Subnormal",
        dtypes=("f64",),
    )
    largest = (2 - 2.0 ** -DIGITS[to]) * 2.0 ** (1 - LOWEST[to])
    edge = largest + 2.0 ** (-LOWEST[to] - DIGITS[to])
    large = np.array([largest, np.nextafter(edge, 0), edge, 2 * largest, 1e300])
    yield _case(
        f"to-{to}/overflow",
        [large, -large],
        to,
        "the largest value, just below half a step more, exactly that (infinite), and beyond",
        "HalfRounding",
        "Overflow",
        dtypes=("f64",),
    )
    if to == "f32":
        return
    # In f32 these become exact ties, which then go to the even neighbour: the wrong one.
    traps = np.array(
        [1 + half + 2.0**-30, 1 + 3 * half - 2.0**-30, 3 + 2 * half + 2.0**-29, 5 - 4 * half + 2.0**-28]
    )
    yield _case(
        f"to-{to}/double-rounding",
        [traps, -traps, traps * 2.0**-9],
        to,
        "by way of f32 these become ties and go the wrong way",
        dtypes=("f64",),
    )
    from_f32 = np.array([1 + half + 2.0**-23, 1 + 3 * half - 2.0**-23, 1.5 - 2.0**-23, 0.1, 1 / 3])
    yield _case(
        f"to-{to}/beside-ties-f32",
        [from_f32, -from_f32],
        to,
        "the same one step of f32 away",
        dtypes=("f32",),
    )


def _anything(to: str) -> Iterator[Draft]:
    special = [0.0, -0.0, 1.0, -2.0, INF, -INF, NAN, 0.1, -(1 / 3), 65504, 3e38, 1e-7, -1e-40]
    yield _case(
        f"to-{to}/special",
        special,
        to,
        "zeros keep their sign, infinities stay, NaN stays NaN",
        "HalfRounding",
        "VisibleNaN",
    )
    draw = Draw(f"cast/{to}")
    scales = 2.0 ** draw.integers(-30, 20, 7, 11).astype(float)
    yield _case(f"to-{to}/random", draw.normal(7, 11) * scales, to, "numbers of many sizes")


def _broken_numbers() -> Iterator[Draft]:
    """NaN of ones only, which a rounding by addition carries into -0; or of the lowest bit, which is cut off."""
    codes = np.array([0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x7FF0000000000001], np.uint64)
    for to in EVERY:
        note = "NaN stays NaN whatever its payload"
        yield _case(f"to-{to}/nan-payload", codes.view(np.float64), to, note, "HalfRounding", "VisibleNaN")


def _every_code() -> Iterator[Draft]:
    """All values of a half type, widened; they are exact in float64, so a draft can hold them."""
    codes = np.arange(2**16, dtype=np.uint32)
    f16 = codes.astype(np.uint16).view(np.float16).astype(np.float64)
    with np.errstate(invalid="ignore"):  # signalling NaNs among them
        bf16 = (codes << 16).view(np.float32).astype(np.float64)
    for dtype, values, other in (("f16", f16, "bf16"), ("bf16", bf16, "f16")):
        for to in ("f32", other, dtype):
            yield _case(f"every-{dtype}/to-{to}", values, to, f"all 65,536 codes of {dtype}", dtypes=(dtype,))


def _shapes() -> Iterator[Draft]:
    draw = Draw("cast/shapes")
    for shape in ((), (0,), (3, 0, 2), (1,), (2, 3, 1, 4, 2)):
        name = "x".join(map(str, shape)) or "scalar"
        yield _case(f"shape/{name}", draw.normal(*shape), "bf16", "any shape", "HalfRounding", "AxisOrder")
    for n in (7, 8, 9, 15, 16, 17, 31, 33):
        yield _case(f"size/{n}", draw.normal(n), "f16", "sizes around a vector", "HalfRounding", "VectorTail")


def _errors() -> Iterator[Draft]:
    def refused(name: str, error: str, note: str, x: Any, **config: Any) -> Draft:
        return Draft(f"cast/error/{name}", "cast", x, config, flags=("ErrorCode",), note=note, error=error)

    yield refused("integers", "dtype_mismatch", "integers are not cast", {"x": np.arange(4)}, to="f32")
    yield refused("booleans", "dtype_mismatch", "nor are truth values", {"x": np.ones(4, bool)}, to="f32")
    yield refused("missing-to", "invalid_request", "a cast to nothing", {"x": np.ones(4)})
    yield refused("missing-x", "invalid_request", "a cast of nothing", {"y": np.ones(4)}, to="f16")
