"""sdpa cases that a person can check by eye."""

from collections.abc import Iterator
from math import log
from typing import Any

import numpy as np

from ..tensors import Tensors
from .draft import Draft, score_form, uniform_form

LN2 = log(2)
OUT, ALL = ("output",), ("output", "weights", "lse")
INF = np.inf


def _case(name: str, inputs: Tensors, note: str, *flags: str, **config: Any) -> Draft:
    want = config.pop("want", ALL)
    return Draft(f"sdpa/{name}", "sdpa", inputs, config, want=want, flags=flags, note=note)


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _formula()
    yield from _masked()
    yield from _causal()
    yield from _window()
    yield from _heads()
    yield from _bias()


def _formula() -> Iterator[Draft]:
    yield _case(
        "by-hand/one-third",
        score_form([0, LN2], [3, 6]),
        "weights 1/3 and 2/3: output 5",
        "ByHand",
        scale=1.0,
    )
    yield _case("by-hand/uniform", uniform_form(2, [1, 2, 6]), "the mean of V: 3", "ByHand")
    inputs = {
        "q": np.ones((1, 1, 2, 4)),
        "k": np.stack([np.zeros(4), np.full(4, LN2 / 2)])[None, None],
        "v": np.array([[3.0, 0, 1], [6, 3, 1]])[None, None],
    }
    flags = ("AbsentIsNotZero", "ValueDim")
    yield _case("scale/default", inputs, "1/sqrt(4): output [5, 2, 1]; 1/sqrt(Dv) would give 5.07", *flags)
    yield _case("scale/null", inputs, "null is absent", *flags, scale=None)
    yield _case("scale/zero", inputs, "an explicit 0 is 0: uniform, [4.5, 1.5, 1]", *flags, scale=0)
    yield _case("scale/one", inputs, "weights 1/5 and 4/5: [5.4, 2.4, 1]", *flags, scale=1)
    yield _case("scale/negative", inputs, "a negative scale is a number like any other", *flags, scale=-0.5)
    inputs = {
        "q": np.ones((1, 1, 1, 5)),
        "k": np.array([[1.0, 1, 1, 1, 10], [0, 0, 0, 0, 0]])[None, None],
        "v": np.array([[14.0], [0]])[None, None],
    }
    yield _case(
        "by-hand/last-channel",
        inputs,
        "the dot product is 14, not 4",
        "VectorTail",
        scale=1,
        want=("output", "scores"),
    )
    inputs = {
        "q": np.array([[8.0, 0]])[None, None],
        "k": np.eye(2)[None, None],
        "v": np.array([[3.0], [6]])[None, None],
    }
    yield _case(
        "softcap/scale-first",
        inputs,
        "scale 0.5, then cap 2: 3.380898",
        "SoftcapOrder",
        scale=0.5,
        softcap=2.0,
        want=("output", "scores", "capped"),
    )
    yield _case(
        "by-hand/large-scores",
        score_form([100, 99], [3, 6]),
        "exp(100) overflows f32: 3.806824",
        "Overflow",
        scale=1,
    )


def _masked() -> Iterator[Draft]:
    base = {**score_form([0, LN2], [3, 6])}
    base["q"] = np.ones((1, 1, 2, 1))
    yield _case(
        "mask/fully-masked-row",
        base | {"mask": np.array([[True, True], [False, False]])},
        "[5, 0], weights of the second row 0, its lse -inf; NaN or 4.5 is wrong",
        "FullyMaskedRow",
        scale=1,
    )
    yield _case(
        "mask/polarity",
        uniform_form(2, [1, 3]) | {"mask": np.array([[True, False], [True, True]])},
        "true = attend: [1, 2]",
        "MaskPolarity",
    )
    yield _case(
        "mask/softcap-order",
        score_form([1, 3], [5, 100]) | {"mask": np.array([True, False])},
        "exactly 5; 9.84 when the cap comes after the mask",
        "SoftcapOrder",
        scale=1,
        softcap=2,
    )
    yield _case(
        "bias/softcap-order",
        score_form([1, 3], [5, 100]) | {"bias": np.array([0, -INF])},
        "the same with -inf in the bias",
        "SoftcapOrder",
        scale=1,
        softcap=2,
    )
    yield _case(
        "mask/left-padding",
        uniform_form(1, [100, 1, 3]) | {"mask": np.array([False, True, True])},
        "padding on the left hidden: 2, not 34.7",
        "LeftPadding",
    )
    values = [1, 2, 4, 8]
    yield _case(
        "lengths/all",
        uniform_form(2, values) | {"kv_lengths": np.array([4])},
        "nothing hidden: 3.75",
        "RowIndependence",
    )
    yield _case(
        "lengths/some", uniform_form(2, values) | {"kv_lengths": np.array([3])}, "7/3", "RowIndependence"
    )
    yield _case(
        "lengths/none",
        uniform_form(2, values) | {"kv_lengths": np.array([0])},
        "0, lse -inf",
        "FullyMaskedRow",
        "EmptyKeys",
    )


def _causal() -> Iterator[Draft]:
    square, wide = uniform_form(5, [1, 2, 4, 8, 16]), uniform_form(2, [1, 2, 4, 8])
    yield _case("causal/square", square, "[1, 1.5, 7/3, 3.75, 6.2]", "CausalAlignment", causal=True)
    yield _case(
        "causal/top-left",
        wide,
        "no offset: [1, 1.5]; [7/3, 3.75] is bottom-right",
        "CausalAlignment",
        causal=True,
    )
    yield _case(
        "causal/bottom-right", wide, "offset 2: [7/3, 3.75]", "CausalAlignment", causal=True, q_offset=2
    )
    yield _case(
        "causal/offset-zero",
        wide,
        "an explicit 0 is top-left",
        "CausalAlignment",
        "AbsentIsNotZero",
        causal=True,
        q_offset=0,
    )
    chunk = uniform_form(2, [1, 2, 4, 8, 16])
    yield _case(
        "causal/second-chunk", chunk, "after 3 tokens: [3.75, 6.2]", "ChunkedPrefill", causal=True, q_offset=3
    )
    tall = uniform_form(4, [1, 3])
    yield _case(
        "causal/more-queries", tall, "top-left: [1, 2, 2, 2]", "CausalAlignment", "EmptyKeys", causal=True
    )
    yield _case(
        "causal/negative-offset",
        tall,
        "offset -2: [0, 0, 1, 2]",
        "CausalAlignment",
        "FullyMaskedRow",
        causal=True,
        q_offset=-2,
    )
    yield _case(
        "causal/far-offset",
        wide,
        "all keys are in the past: 3.75",
        "CausalAlignment",
        causal=True,
        q_offset=100,
    )
    yield _case(
        "causal/offset-alone",
        wide,
        "an offset without causal or window hides nothing",
        "MaskComposition",
        q_offset=1,
    )
    rows = {name: np.repeat(x, 3, axis=0) for name, x in wide.items()}
    yield _case(
        "causal/offset-per-row",
        rows | {"q_offset": np.array([0, 2, -1])},
        "one alignment a row",
        "CausalAlignment",
        "RowIndependence",
        causal=True,
    )


def _window() -> Iterator[Draft]:
    values = [1, 2, 4, 8]
    four = uniform_form(4, values)
    flags = ("WindowOffByOne",)
    yield _case(
        "window/left-1-causal", four, "two keys: [1, 1.5, 3, 6]", *flags, window=[1, None], causal=True
    )
    yield _case(
        "window/left-1-right-0", four, "the same without causal", *flags, "MaskComposition", window=[1, 0]
    )
    yield _case(
        "window/self-only",
        four,
        "[0, 0] is the query itself: output V",
        *flags,
        "AbsentIsNotZero",
        window=[0, 0],
    )
    yield _case("window/right-only", four, "open on the left, one key to the right", *flags, window=[None, 1])
    yield _case(
        "window/left-only", four, "open on the right: [3.75, 3.75, 14/3, 6]", *flags, window=[1, None]
    )
    yield _case("window/open", four, "[null, null] hides nothing", *flags, window=[None, None])
    yield _case("window/null", four, "null is absent", *flags, window=None)
    yield _case(
        "window/wider", four, "wider than the sequence: plain causal", *flags, window=[9, None], causal=True
    )
    for length in (2, 3, 4, 6, 7):
        inputs = uniform_form(1, [2.0**n for n in range(length)])
        yield _case(
            f"window/decode-{length}",
            inputs,
            "window of 3 keys at the end of the sequence",
            "WindowBoundary",
            window=[2, 0],
            q_offset=length - 1,
        )
    yield _case(
        "window/offset",
        uniform_form(2, [1, 2, 4, 8, 16]),
        "the window follows the offset: [6, 12]",
        "WindowOffByOne",
        "ChunkedPrefill",
        window=[1, 0],
        q_offset=3,
    )
    yield _case(
        "window/empty",
        uniform_form(2, values),
        "a window beyond the last key is empty",
        "FullyMaskedRow",
        window=[0, 0],
        q_offset=4,
    )
    three = uniform_form(3, [1, 2, 4])
    for name, more in (("none", {}), ("mask", {"mask": np.ones((3, 3), bool)})):
        for want in (OUT, ALL):
            label = f"composition/causal-{name}-{'weights' if 'weights' in want else 'output'}"
            yield _case(
                label,
                three | more,
                "[1, 1.5, 7/3] whatever else is asked for",
                "MaskComposition",
                causal=True,
                want=want,
            )
    mixed = uniform_form(4, [1, 2, 4, 8]) | {
        "mask": np.array([True, True, False, True]),
        "kv_lengths": np.array([4]),
        "bias": np.array([0, 0, 0, -INF]),
    }
    yield _case(
        "composition/all",
        mixed,
        "mask, bias, lengths, causal and window intersect",
        "MaskComposition",
        causal=True,
        window=[2, 0],
    )


def _heads() -> Iterator[Draft]:
    for heads, kv_values in ((6, [10, 20]), (6, [10, 20, 30]), (4, [10, 20]), (3, [10])):
        kv_heads = len(kv_values)
        inputs = {
            "q": np.zeros((1, heads, 1, 1)),
            "k": np.ones((1, kv_heads, 1, 1)),
            "v": np.array(kv_values, float).reshape(1, -1, 1, 1),
        }
        yield _case(f"gqa/by-hand-{heads}-{kv_heads}", inputs, "query head h reads KV head h // G", "GqaTile")
    b = np.arange(24.0).reshape(2, 3, 4, 1)
    inputs = {"q": np.zeros((2, 3, 2, 1)), "k": np.ones((2, 3, 4, 1)), "v": b}
    yield _case(
        "layout/arange", inputs, "V = 0..23 over four different sizes: means 1.5, 5.5, 9.5, …", "AxisOrder"
    )


def _bias() -> Iterator[Draft]:
    values = uniform_form(1, [1, 2, 4])
    yield _case(
        "bias/decode",
        values | {"bias": np.array([-1, -0.5, 0])},
        "2.826637, and 7/3 without the bias",
        "BiasIsNotMask",
    )
    yield _case(
        "bias/ones-and-zeros",
        uniform_form(1, [1, 3]) | {"bias": np.array([1.0, 0])},
        "1 and 0 are added: 1.538, not masked",
        "BiasIsNotMask",
        "MaskPolarity",
    )
    yield _case(
        "bias/sentinel",
        score_form([0, LN2], [3, 6]) | {"bias": np.array([-1e4, -1e4])},
        "a finite sentinel is only a number: about 5, lse about -1e4",
        "BiasIsNotMask",
        scale=1,
    )
    yield _case(
        "bias/row-constant",
        values | {"bias": np.array([5.0, 5, 5])},
        "a constant changes the lse only",
        "Shift",
    )
    yield _case(
        "sinks/by-hand",
        score_form([0, LN2], [3, 6]) | {"sinks": np.array([0.0])},
        "one more unit in the sum: 15/4, lse ln 4",
        "Sink",
        scale=1,
    )
    empty = score_form([0, LN2], [3, 6]) | {"sinks": np.array([1.5]), "mask": np.array([False, False])}
    yield _case("sinks/no-key", empty, "output 0 and lse = sink", "Sink", "FullyMaskedRow", scale=1)
