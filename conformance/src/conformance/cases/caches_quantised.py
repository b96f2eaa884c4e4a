"""The suite `kv_cache`: caches that round what they hold, their codes, scales and zeros to the bit."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .cache_script import ONE, CacheScript, contiguous, quantised
from .draft import Draft

NAN, INF = np.nan, np.inf
ALL = ("f32", "f64", "f16", "bf16")
WIDE = ("f32", "f64")
FLOATS, INTEGERS = ("f16", "bf16", "fp8_e4m3"), ("int8", "int4")
SCHEMES: tuple[tuple[str, dict[str, Any]], ...] = (
    *((name, {"format": name}) for name in (*FLOATS, *INTEGERS)),
    *((f"{name}-zero", {"format": name, "zero_point": True}) for name in INTEGERS),
    *((f"{name}-group", {"format": name, "group": 3}) for name in INTEGERS),
    ("int4-zero-group", {"format": "int4", "zero_point": True, "group": 2}),
)


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _schemes()
    yield from _degenerate()
    yield from _ties()
    yield from _floats()
    yield from _failures()


def tokens(name: str, rows: Any, dtypes: tuple[str, ...] = WIDE, **scheme: Any) -> CacheScript:
    """One head whose keys are these tokens, (T, D), and whose values are their negatives."""
    k = np.atleast_2d(np.array(rows, float))[None, None]
    D = k.shape[3]
    script = quantised(name, scheme.pop("format"), **scheme, batch=1, Hq=1, Hkv=1, D=D, Dv=D)
    return script.append(k.shape[2], k=k, v=-k).read(codes=True)


def _by_hand() -> Iterator[Draft]:
    for name in INTEGERS:
        k, v = np.array([0, np.log(2)]).reshape(1, 1, 2, 1), np.array([3.0, 6.0]).reshape(1, 1, 2, 1)
        script = quantised(f"quantised/by-hand/{name}", name, **ONE).append(2, k=k, v=v)
        script.attend(1, q=np.ones((1, 1, 1, 1)), scale=1).read(codes=True)
        yield script.draft("weights 1/3 and 2/3 of 3 and 6: 5", "ByHand", "QuantisedScale", dtypes=ALL)
    pair = tokens("quantised/by-hand/ends", [-1, 1], format="int8").attend_uniform()
    yield pair.draft("[-1, 1] is -127 and 127, and comes back exactly", "ByHand", "CodeRounding", dtypes=ALL)
    nibbles = tokens("quantised/by-hand/nibbles", [7, -7, 1, -1, 2], format="int4").attend_uniform()
    yield nibbles.draft(
        "scale 1: 7 and -7 are the byte 0x97, 1 and -1 0xF1, the odd 2 is 0x02",
        "ByHand",
        "CodeRounding",
        dtypes=ALL,
    )
    steps = tokens(
        "quantised/by-hand/zero-point", [-1, 254, 3], format="int8", zero_point=True
    ).attend_uniform()
    yield steps.draft("scale 1, zero -1: codes 0, 255, 4", "ByHand", "CodeRounding", dtypes=WIDE)


def _schemes() -> Iterator[Draft]:
    for name, scheme in SCHEMES:
        draw = Draw(f"kv_cache/quantised/{name}")
        # Heads and parts of different sizes: a scale of another one would be seen.
        size = np.array([0.01, 3.0]).reshape(1, 2, 1, 1)
        k, v = draw.normal(2, 2, 6, 7) * size, draw.normal(2, 2, 6, 5) * size[:, ::-1]
        script = (
            quantised(f"quantised/{name}", **scheme, D=7, Dv=5)
            .append(6, [6, 4], k=k, v=v)
            .attend(2, causal=True)
        )
        script.read(codes=True, positions=True).append(1).attend(1).truncate(3, 5).append(
            2, [2, 1], padding="left"
        )
        script.attend(2, causal=True, window=[2, None]).reorder(1, 0).read(codes=True).stats()
        script.fork("b").append(1).on("b").read(cache="b", codes=True).read().reset().append(1).attend(1)
        yield script.draft(
            "all steps, heads of different sizes", "QuantisedScale", "CodeRounding", dtypes=ALL
        )
    full = quantised("quantised/capacity", "int8", capacity=4).append(3).append(2, code="capacity_exceeded")
    yield full.read(codes=True).append(1).attend(1).read().draft("a capacity", "Capacity", "NothingChanged")
    yield (
        quantised("quantised/empty", "int4")
        .append(0)
        .attend(2)
        .read(codes=True)
        .stats()
        .draft("nothing held", "EmptyKeys", dtypes=ALL)
    )
    yield (
        quantised("quantised/no-rows", "int8", batch=0)
        .append(2)
        .attend(1)
        .read(codes=True)
        .draft("no rows", "EmptyKeys")
    )
    yield (
        quantised("quantised/large", "int8", batch=1, Hq=8, Hkv=2, D=64, Dv=64, group=32)
        .append(150)
        .attend(2, causal=True)
        .draft("a long past in groups of 32", "VectorTail", "QuantisedScale")
    )
    for name in ("int8", "int4", "fp8_e4m3", "f16"):
        rope = (
            quantised(f"quantised/rope/{name}", name, D=4, rope={}).append(4).attend(2, causal=True).append(2)
        )
        yield (
            rope.attend(2, causal=True)
            .read()
            .draft("keys turned, then rounded", "RopePosition", "QuantisedScale", dtypes=ALL)
        )


def _degenerate() -> Iterator[Draft]:
    for name in INTEGERS:
        zero = tokens(f"quantised/zero-group/{name}", [[0, 0, 0, 0], [1, 0, 0, 0]], format=name, group=2)
        yield zero.attend_uniform().draft("a group of zeros is zeros, not NaN", "ZeroGroup", dtypes=ALL)
        equal = tokens(f"quantised/equal-group/{name}", [0.7, 0.7, 0.7, 0.7], format=name, zero_point=True)
        yield equal.attend_uniform().draft("0.7 four times: range 0, value 0.7", "ZeroGroup", dtypes=ALL)
        one = tokens(f"quantised/group-1/{name}", [0.3, -2, 0, 1e-20], format=name, group=1)
        yield one.attend_uniform().draft("a scale a channel", "ZeroGroup", "QuantisedScale", dtypes=WIDE)
        wide = tokens(f"quantised/group-wide/{name}", [0.3, -2, 0.5], format=name, group=100)
        yield wide.attend_uniform().draft("a group wider than the head", "QuantisedScale", dtypes=ALL)
        for zero_point in (False, True):
            tail = "-zero" if zero_point else ""
            tiny = [
                [3e-45, -1.4e-45, 7e-45, 0],
                [1e-42, -2e-43, 5e-43, 1e-44],
                [1.2e-38, -1e-38, 6e-39, 1e-40],
            ]
            small = tokens(f"quantised/subnormal/{name}{tail}", tiny, format=name, zero_point=zero_point)
            yield small.draft("scales among the subnormals, or 0", "ZeroGroup", "Subnormal", dtypes=WIDE)
            outlier = [[1000, 0.5, -0.25, 0.1], [-3e38 if not zero_point else -1e38, 1, 2, 3]]
            large = tokens(f"quantised/outlier/{name}{tail}", outlier, format=name, zero_point=zero_point)
            yield large.draft("one large channel takes the others' precision", "QuantisedScale", dtypes=WIDE)
    junk = np.full((2, 2, 3, 3), NAN)
    padded = (
        quantised("quantised/junk", "int8")
        .append(2)
        .append(3, [1, 0], k=_but_first(junk), v=np.full((2, 2, 3, 5), 1.0))
    )
    yield padded.read(codes=True).attend(1).draft("NaN beyond the lengths is not looked at", "HiddenPoison")


def _but_first(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[0, :, 0] = 1.5
    return x


def _ties() -> Iterator[Draft]:
    """Exactly between two codes: the even one."""
    halves = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]
    yield tokens("quantised/ties/int8", halves, format="int8").draft(
        "ties to even", "CodeRounding", dtypes=ALL
    )
    halves = [7, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 6.5, -6.5]
    yield tokens("quantised/ties/int4", halves, format="int4").draft(
        "ties to even", "CodeRounding", dtypes=ALL
    )
    halves = [0, 255, 0.5, 1.5, 2.5, 254.5]
    script = tokens("quantised/ties/int8-zero", halves, format="int8", zero_point=True)
    yield script.draft("ties to even", "CodeRounding", dtypes=("f32", "f64", "f16"))
    halves = [0, 15, 0.5, 1.5, 2.5, 14.5]
    script = tokens("quantised/ties/int4-zero", halves, format="int4", zero_point=True)
    yield script.draft("ties to even", "CodeRounding", dtypes=ALL)
    for name in INTEGERS:
        for zero_point in (False, True):
            draw = Draw(f"kv_cache/quantised/many/{name}/{zero_point}")
            many = draw.normal(40, 9) * np.exp(8 * draw.normal(40, 1))
            script = tokens(
                f"quantised/many/{name}{'-zero' if zero_point else ''}",
                many,
                format=name,
                zero_point=zero_point,
            )
            yield script.draft("40 tokens of all sizes", "CodeRounding", dtypes=WIDE)
    # From double precision by way of float32: the first rounding makes a tie of it.
    twice = 2.5 + 2.0**-40
    script = tokens("quantised/ties/twice", [127, twice, -twice], format="int8")
    yield script.draft(
        "an f64 is rounded to f32 first, so 2.5 and a little is 2", "CodeRounding", dtypes=("f64",)
    )


def _floats() -> Iterator[Draft]:
    small = 2.0**-9
    fp8 = [
        [0, -0.0, 448, 449, 464, 1e30, -1e30, INF],
        [-INF, NAN, -NAN, small, small / 2, small * 1.5, small * 0.75, small * 2.5],
        [1, 1.0625, 1.1875, 1.3125, -1.0625, 17, 19, 0.015],
        [432, 416, 440, 2.0**-6, 2.0**-6 * 0.99, 7 * small, 7.5 * small, 1e-30],
    ]
    script = tokens("quantised/fp8/table", fp8, format="fp8_e4m3")
    yield script.draft(
        "saturates at 448, keeps subnormals and NaN, ties to even", "CodeRounding", dtypes=WIDE
    )
    every = np.array([(-1.0) ** (n >> 7) * _e4m3(n & 127) for n in range(256) if n & 127 != 127]).reshape(
        -1, 127
    )
    script = tokens("quantised/fp8/every", every, format="fp8_e4m3")
    yield script.draft("every value that there is stays", "CodeRounding", dtypes=ALL)
    between = np.array([(_e4m3(n) + _e4m3(n + 1)) / 2 for n in range(126)])
    script = tokens("quantised/fp8/between", [between, -between], format="fp8_e4m3")
    yield script.draft("exactly between two neighbours: the even one", "CodeRounding", dtypes=ALL)
    half = [
        [1 + 2.0**-11, 1 + 3 * 2.0**-11, 65504, 65519, 65520, 1e6],
        [2.0**-25, 2.0**-24, 3 * 2.0**-25, -(2.0**-26), NAN, -INF],
    ]
    script = tokens("quantised/f16/table", half, format="f16")
    yield script.draft("ties, the largest, subnormals", "HalfRounding", "CodeRounding", dtypes=WIDE)
    half = [
        [1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.39e38, 1e30, 1e-40, 0.1],
        [2.0**-134, 2.0**-133, 3 * 2.0**-134, -0.0, NAN, INF],
    ]
    script = tokens("quantised/bf16/table", half, format="bf16")
    yield script.draft("ties, the largest, subnormals", "HalfRounding", "CodeRounding", dtypes=WIDE)
    poison = tokens("quantised/fp8/poison", [[1, NAN], [2, 1]], format="fp8_e4m3")
    poison.attend(1, q=np.ones((1, 1, 1, 2))).attend(1, q=np.ones((1, 1, 1, 2)), window=[0, 0])
    yield poison.draft("NaN that is seen, and NaN that is hidden", "VisibleNaN", "HiddenPoison")


def _e4m3(code: int) -> float:
    """By the definition: four bits of exponent with bias 7, three of fraction."""
    exponent, fraction = code >> 3, code & 7
    return float(fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10))


def _failures() -> Iterator[Draft]:
    for name in INTEGERS:
        for value in (NAN, INF, -INF):
            for part in ("k", "v"):
                given: dict[str, Any] = {part: np.full((2, 2, 1, 3 if part == "k" else 5), 1.0)}
                given[part][1, 1, 0, 2] = value
                script = quantised(f"quantised/failure/{name}-{part}-{value}", name).append(2)
                script.append(1, code="invalid_config", **given).read(codes=True).append(1).attend(1)
                yield script.draft(
                    "what is not finite has no scale: nothing is appended", "NothingChanged", "ErrorCode"
                )
    k = np.full((2, 2, 1, 3), 3e38) * np.array([1, -1, 0])
    for zero_point, code in ((False, "ok"), (True, "invalid_config")):
        script = quantised(
            f"quantised/failure/range-{zero_point}".lower(), "int8", zero_point=zero_point
        ).append(2)
        yield (
            script.append(1, k=k, code=code)
            .read(codes=True)
            .draft("two ends that are too far apart for their distance", "ErrorCode", "NothingChanged")
        )
    large = np.full((2, 2, 1, 3), 1e39)
    script = (
        quantised("quantised/failure/beyond-f32", "int8").append(2).append(1, k=large, code="invalid_config")
    )
    yield script.read(codes=True).draft("infinite in float32", "ErrorCode", "NothingChanged", dtypes=("f64",))
    plain = contiguous("quantised/failure/codes-of-another-kind").append(2)
    plain.steps.append({"do": "read", "out": "codes", "codes": True})
    plain.codes.append("invalid_config")
    yield plain.read().attend(1).draft("a cache without codes has none to read", "ErrorCode")
