"""The suite `dropout`, first part: the op. The words of seed 0 begin 6627e8d5, e169c58d, bc57ac4c, 9b00dbd8."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft

BOTH = ("output", "keep")
FIRST_WORD = 0x6627E8D5
INF, NAN = np.inf, np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _counters()
    yield from _values()
    yield from _halves()
    yield from _errors()


def _case(name: str, x: Any, note: str, *flags: str, **config: Any) -> Draft:
    dtypes = config.pop("dtypes", ("f32", "f64"))
    config = {"p": 0.5, "seed": 0} | config
    inputs: Tensors = {"x": np.array(x, float)}
    return Draft(
        f"dropout/{name}",
        "dropout",
        inputs,
        config,
        BOTH,
        flags or ("DropoutMask",),
        note,
        None,
        None,
        ("keep",),
        dtypes,
    )


def _by_hand() -> Iterator[Draft]:
    ones = np.ones(4)
    flags = ("ByHand", "DropoutScale", "DropoutMask")
    yield _case("by-hand/half", [1, 2, 3, 4], "the first word is below 2^31: [0, 4, 6, 8]", *flags)
    yield _case("by-hand/quarter", ones, "no word is below 2^30: four times 4/3", *flags, p=0.25)
    yield _case("by-hand/three-quarters", ones, "only 0.88 of 2^32 is above: [0, 4, 0, 0]", *flags, p=0.75)
    yield _case("by-hand/nothing", [1, NAN, -INF, 0.1], "p = 0 returns the input", *flags, p=0)
    yield _case("by-hand/everything", [1, NAN, -INF, 0.1], "p = 1: zeros, and not 0 · inf", *flags, p=1)
    yield _case("by-hand/poison", [NAN, NAN, INF, 1], "what is dropped is 0 whatever it was", *flags)
    yield _case(
        "threshold/equal",
        ones,
        "p · 2^32 is the first word itself, which is not below",
        *flags,
        p=FIRST_WORD / 2**32,
    )
    yield _case(
        "threshold/above",
        ones,
        "half above the first word: rounded up, so it is below",
        *flags,
        p=(FIRST_WORD + 0.5) / 2**32,
    )
    yield _case("threshold/tiny", ones, "p = 1e-12 drops the word 0 only", *flags, p=1e-12)


def _counters() -> Iterator[Draft]:
    draw = Draw("dropout/counters")
    x = draw.normal(3, 7)
    for seed in (1, 2**31, 2**32 - 1, 2**32, 2**53 - 1):
        yield _case(f"seed/{seed}", x, "both words of the key", seed=seed)
    for offset in (1, 2, 3, 4, 5, 17, 2**32, 2**34 - 3, 2**34, 2**50 + 1):
        note = "word n mod 4 of block n div 4; the block has 64 bits"
        yield _case(f"offset/{offset}", x, note, offset=offset, seed=42)
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 257):
        yield _case(
            f"size/{n}",
            draw.normal(n),
            "blocks of four words, vectors of more",
            "DropoutMask",
            "VectorTail",
            seed=n,
        )
    yield _case("whole-floats", x, "7.0 is 7 where a whole number is due", seed=7.0, offset=8.0)
    yield _case("null-offset", x, "null is absent", "DropoutMask", "AbsentIsNotZero", seed=7, offset=None)
    yield _case(
        "rank-4", draw.normal(2, 3, 4, 5), "row-major numbering", "DropoutMask", "AxisOrder", p=0.3, seed=7
    )
    yield _case("rank-0", 2.0, "one number", seed=3)
    for shape in ((0,), (2, 0, 3)):
        yield _case(f"empty/{'x'.join(map(str, shape))}", np.zeros(shape), "nothing to drop", "EmptyKeys")


def _values() -> Iterator[Draft]:
    x = Draw("dropout/values").normal(5, 13)
    for p in (0.1, 0.3, 0.9, 0.999, 2.0**-32):
        yield _case(f"p/{p:g}", x, "the factor is 1/(1-p), rounded once", "DropoutScale", p=p, seed=11)


def _halves() -> Iterator[Draft]:
    halves = {"dtypes": ("f16", "bf16")}
    x = Draw("dropout/half").normal(4, 9)
    flags = ("HalfInside", "DropoutScale")
    yield _case("half/third", x, "the factor 1/(1-1/3) stays in f32", *flags, p=1 / 3, seed=5, **halves)
    yield _case("half/tenth", x, "times 10/9", *flags, p=0.1, seed=6, **halves)
    yield _case(
        "half/large", [60000.0, 60000, 30000, 3], "beyond the largest f16: infinite", *flags, **halves
    )
    yield _case(
        "half/subnormal", [6e-8, 6e-8, 1.2e-7, 3e-7], "the smallest numbers of f16", *flags, p=0.3, **halves
    )
    yield _case("half/nothing", x, "p = 0 returns the input", *flags, p=0, **halves)
    yield _case("half/everything", x, "p = 1: zeros", *flags, p=1, **halves)


def _errors() -> Iterator[Draft]:
    def refused(name: str, error: str, note: str, x: Any = None, **config: Any) -> Draft:
        config = {key: value for key, value in ({"p": 0.5, "seed": 1} | config).items() if value != "absent"}
        inputs = {"x": np.ones(5)} if x is None else x
        return Draft(
            f"dropout/error/{name}", "dropout", inputs, config, flags=("ErrorCode",), note=note, error=error
        )

    yield refused("p-negative", "invalid_config", "fewer than none", p=-0.1)
    yield refused("p-large", "invalid_config", "more than all", p=1.0000001)
    yield refused("p-text", "invalid_config", "p is a number", p="0.5")
    yield refused("seed-negative", "invalid_config", "seeds start at 0", seed=-1)
    yield refused("seed-large", "invalid_config", "2^53 is no exact number everywhere", seed=2**53)
    yield refused("seed-fraction", "invalid_config", "a seed is whole", seed=0.5)
    yield refused("seed-text", "invalid_config", "a seed is a number", seed="7")
    yield refused("offset-negative", "invalid_config", "no element stands before the first", offset=-1)
    yield refused("offset-fraction", "invalid_config", "an element between elements", offset=1.5)
    yield refused("p-missing", "invalid_request", "no p", p="absent")
    yield refused("seed-missing", "invalid_request", "no seed", seed="absent")
    yield refused("x-missing", "invalid_request", "no x", {"y": np.ones(5)})
    yield refused("integers", "dtype_mismatch", "integers are not dropped", {"x": np.arange(5)})
