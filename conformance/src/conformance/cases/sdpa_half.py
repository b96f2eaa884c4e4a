"""The suite `sdpa`, last part: f16 and bf16, which are computed in f32 and rounded once."""

from collections.abc import Iterator
from math import log
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other, score_form, uniform_form
from .sdpa_sizes import random_inputs

HALVES = ("f16", "bf16")
ALL = ("output", "weights", "lse")
STEPS = (*ALL, "scores", "capped", "biased")
INF, NAN = np.inf, np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _sdpa()
    yield from _special()
    yield from _errors()


def _sdpa() -> Iterator[Draft]:
    def case(
        name: str, inputs: Any, note: str, *flags: str, want: tuple[str, ...] = ALL, **config: Any
    ) -> Draft:
        flags = ("HalfInside", *flags)
        return Draft(f"sdpa/half/{name}", "sdpa", inputs, config, want, flags, note, dtypes=HALVES)

    def inputs(name: str, *sizes: int) -> Tensors:
        return random_inputs(f"sdpa/half/{name}", *(sizes or (2, 4, 2, 3, 9, 8, 5)))

    thirds = score_form([0, log(2)], [3, 6])
    yield case("one-third", thirds, "about 5: the weights are not rounded before the sum", "ByHand", scale=1)
    yield case("uniform", uniform_form(1, [1, 2, 6]), "the mean of V: 3", "ByHand")
    long = uniform_form(1, np.arange(1, 1001) / 512.0)
    yield case("long", long, "a mean of 1000 values: a sum in the half type stands still", "LseNatural")
    yield case(
        "steps",
        inputs("steps"),
        "every intermediate, each rounded once",
        want=STEPS,
        softcap=2.0,
        causal=True,
    )
    for D in (1, 7, 16, 17, 33, 64):
        sizes = (1, 2, 1, 2, 5, D, 3)
        yield case(f"head-size/{D}", inputs(f"head-size/{D}", *sizes), f"D = {D}", "VectorTail")
    for Tk in (1, 16, 17, 65, 129):
        yield case(f"kv-len/{Tk}", inputs(f"kv-len/{Tk}", 1, 2, 2, 2, Tk, 4, 3), f"Tk = {Tk}", "VectorTail")
    yield case("gqa", inputs("gqa"), "groups", "GqaTile", causal=True, q_offset=6)
    masked = inputs("mask") | {"mask": Draw("sdpa/half/mask").choice(0.5, 3, 9)}
    yield case("mask", masked, "with a mask", "MaskBroadcast")
    biased = inputs("bias") | {
        "bias": np.where(np.arange(9) == 4, -INF, Draw("sdpa/half/bias").normal(4, 3, 9))
    }
    yield case("bias", biased, "a bias of halves, -inf in it", "BiasIsNotMask")
    lengths = inputs("lengths") | {"kv_lengths": np.array([0, 5])}
    yield case(
        "lengths", lengths, "a row without keys", "FullyMaskedRow", "RowIndependence", window=[2, None]
    )
    sinks = inputs("sinks") | {"sinks": np.array([0.1, -1, 2.3, 0])}
    yield case("sinks", sinks, "sinks of halves; their lse in f32", "Sink")


def _special() -> Iterator[Draft]:
    def case(name: str, inputs: Any, note: str, *flags: str, **config: Any) -> Draft:
        return Draft(
            f"sdpa/half/{name}", "sdpa", inputs, config, ALL, ("HalfInside", *flags), note, dtypes=HALVES
        )

    large = {"q": np.full((1, 1, 1, 64), 60.0), "k": np.full((1, 1, 2, 64), 50.0), "v": np.ones((1, 1, 2, 3))}
    large["k"][0, 0, 1] = 0
    note = "a score of 192,000 fits in no f16, and need not: the output is 1"
    yield case("large-scores", large, note, "Overflow", scale=1)
    values = uniform_form(1, [60000, 60000, 60000, 60000])
    yield case("large-values", values, "their sum fits in no f16, their mean does: 60000", "Overflow")
    tiny_values = uniform_form(2, [6e-8, 1.2e-7])
    yield case("subnormal", tiny_values, "values among the subnormals of f16", "Subnormal")
    poisoned = random_inputs("sdpa/half/poison", 1, 1, 1, 2, 5, 4, 3)
    poisoned["k"][:, :, 2], poisoned["v"][:, :, 3] = NAN, INF
    poisoned |= {"mask": np.array([True, True, False, False, True])}
    yield case("poison", poisoned, "NaN and infinity in hidden slots", "HiddenPoison")
    visible = random_inputs("sdpa/half/nan", 1, 1, 1, 2, 5, 4, 3)
    visible["q"][0, 0, 1, 0] = NAN
    yield case("nan", visible, "a broken query", "VisibleNaN")
    yield case("empty/keys", random_inputs("sdpa/half/empty", 1, 2, 1, 3, 0, 4, 5), "no keys", "EmptyKeys")
    yield case(
        "empty/queries", random_inputs("sdpa/half/empty", 1, 2, 1, 0, 3, 4, 5), "no queries", "EmptyKeys"
    )


def _errors() -> Iterator[Draft]:
    base: dict[str, Any] = dict(random_inputs("sdpa/half/error", 1, 2, 2, 3, 4, 5, 5))
    for name, inputs, note in (
        ("k", {"k": Other(np.zeros((1, 2, 4, 5)))}, "keys of another float type"),
        ("v", {"v": Other(np.zeros((1, 2, 4, 5)))}, "values of another float type"),
        ("bias", {"bias": Other(np.zeros(4))}, "a bias of another float type"),
        ("sinks", {"sinks": Other(np.zeros(2))}, "sinks of another float type"),
    ):
        yield Draft(
            f"sdpa/half/error-{name}",
            "sdpa",
            base | inputs,
            flags=("ErrorCode",),
            note=note,
            error="dtype_mismatch",
            dtypes=HALVES,
        )
