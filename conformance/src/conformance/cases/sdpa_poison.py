"""sdpa cases with what is not finite, or nearly not: poison where nothing may be read, NaN and Inf where it counts."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..tensors import Tensors
from .draft import Draft
from .sdpa_rules import ALL, SIZES, rule
from .sdpa_sizes import random_inputs

INF, NAN = np.inf, np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _poison()
    yield from _not_finite()
    yield from _extreme()


def _poison() -> Iterator[Draft]:
    """NaN and Inf where nothing may be read. Every variant hides the last two keys in another way."""
    hidden = np.arange(7) < 5
    hiding: dict[str, tuple[Tensors, dict[str, Any]]] = {
        "mask": ({"mask": hidden}, {}),
        "bias": ({"bias": np.where(hidden, 0.25, -INF)}, {}),
        "lengths": ({"kv_lengths": np.array([5, 5])}, {}),
        "causal": ({}, {"causal": True, "q_offset": 0}),
        "window": ({}, {"window": [None, 0]}),
    }
    for way, (inputs, config) in hiding.items():
        for poison in (NAN, INF, -INF):
            name = f"poison/{way}-{'nan' if np.isnan(poison) else 'inf' if poison > 0 else 'minus-inf'}"
            base = random_inputs(f"sdpa/{name}", *SIZES)
            base["k"][:, :, 5:] = poison
            base["v"][:, :, 5:] = poison
            yield rule(
                name,
                f"{poison} in hidden K and V, hidden by {way}",
                "HiddenPoison",
                inputs=base | inputs,
                **config,
            )
    base = random_inputs("sdpa/poison/some-rows", *SIZES)
    base["v"][0, 1, 3] = NAN
    mask = np.ones((5, 7), dtype=bool)
    mask[1:4, 3] = False
    yield rule(
        "poison/some-rows",
        "NaN in one value: rows that see it are NaN, the others untouched",
        "HiddenPoison",
        "VisibleNaN",
        inputs=base | {"mask": mask},
    )
    base = random_inputs("sdpa/poison/all-hidden", *SIZES)
    base["k"][:], base["v"][:] = NAN, NAN
    yield rule(
        "poison/all-hidden",
        "nothing but NaN, and all of it hidden: 0",
        "HiddenPoison",
        "FullyMaskedRow",
        inputs=base | {"mask": np.zeros((1, 1), bool)},
    )
    base = random_inputs("sdpa/poison/softcap", *SIZES)
    base["k"][:, :, 5:] = NAN
    yield rule(
        "poison/softcap",
        "NaN scores behind softcap and mask",
        "HiddenPoison",
        "SoftcapOrder",
        inputs=base | {"mask": hidden},
        softcap=2.0,
    )
    base = random_inputs("sdpa/poison/sinks", *SIZES)
    base["k"][:, :, 5:], base["v"][:, :, 5:] = NAN, INF
    yield rule(
        "poison/sinks",
        "NaN hidden beside a sink",
        "HiddenPoison",
        "Sink",
        inputs=base | {"mask": hidden, "sinks": np.ones(4)},
    )


def _not_finite() -> Iterator[Draft]:
    for name, tensor, index, note in (
        ("query", "q", (0, 1, 2, 3), "NaN in one query: its row is NaN, no other"),
        ("key", "k", (1, 0, 2, 4), "NaN in one visible key: NaN wherever it is seen"),
        ("value", "v", (1, 1, 6, 2), "NaN in one visible value: NaN in that channel only"),
    ):
        base = random_inputs(f"sdpa/nan/{name}", *SIZES)
        base[tensor][index] = NAN
        yield rule(f"nan/{name}", note, "VisibleNaN", inputs=base, causal=True, q_offset=4)
    bias = np.zeros((5, 7))
    bias[2, 3] = NAN
    yield rule("nan/bias", "NaN in the bias of a visible slot", "VisibleNaN", inputs={"bias": bias})
    bias = np.zeros((5, 7))
    bias[2, 3] = INF
    yield rule("inf/bias", "a visible +inf score makes its row NaN", "InfiniteScore", inputs={"bias": bias})
    yield from _infinite_scores()
    base = random_inputs("sdpa/inf/value", *SIZES)
    base["v"][0, 0, 2, 1] = INF
    yield rule("inf/value", "Inf in a visible value reaches the output", "VisibleNaN", inputs=base)
    base = random_inputs("sdpa/inf/values", *SIZES)
    base["v"][0, 0, 2, 1], base["v"][0, 0, 4, 1] = INF, -INF
    yield rule("inf/values", "Inf and -Inf in one channel are NaN", "VisibleNaN", inputs=base)
    yield Draft(
        "sdpa/inf/vanished-weight",
        "sdpa",
        {
            "q": np.ones((1, 1, 1, 1)),
            "k": np.array([0.0, -1e5]).reshape(1, 1, 2, 1),
            "v": np.array([3, INF]).reshape(1, 1, 2, 1),
        },
        {"scale": 1},
        ALL,
        ("VisibleNaN",),
        "a weight that underflows to 0 is still visible: 0 · Inf is NaN",
    )


def _infinite_scores() -> Iterator[Draft]:
    """Infinities in visible Q and K. Keys are at [1, 0, 2], seen by every query of heads 0 and 1 in row 1."""
    base = random_inputs("sdpa/inf/key", *SIZES)
    base["k"][1, 0, 2, 4] = -INF
    note = "scores of -inf hide the key from queries above 0, those of +inf make the rows of the others NaN"
    yield rule("inf/key", note, "InfiniteScore", inputs=base)
    base = random_inputs("sdpa/inf/key-hides", *SIZES)
    base["q"][..., 4] = np.abs(base["q"][..., 4]) + 0.1
    base["k"][1, 0, 2, 4], base["v"][1, 0, 2] = -INF, NAN
    yield rule("inf/key-hides", "a score of -inf hides the NaN of its value", "HiddenPoison", inputs=base)
    sinks = base | {"sinks": np.ones(4)}
    yield rule("inf/key-sinks", "a score of -inf hides its key beside a sink", "Sink", inputs=sinks)
    base = random_inputs("sdpa/inf/keys-hide", *SIZES)
    base["q"][..., 4] = np.abs(base["q"][..., 4]) + 0.1
    base["k"][1, 0, :, 4] = -INF
    note = "scores of -inf hide every key of two heads: 0, and lse -inf"
    yield rule("inf/keys-hide", note, "FullyMaskedRow", inputs=base)
    steps = (*ALL, "capped")
    for name, tensor, index, value in (
        ("key", "k", (1, 0, 2, 4), INF),
        ("key-minus", "k", (1, 0, 2, 4), -INF),
        ("query", "q", (0, 1, 2, 3), INF),
    ):
        base = random_inputs(f"sdpa/inf/softcap-{name}", *SIZES)
        base[tensor][index] = value
        note = "the cap makes an infinite score ±2: nothing is hidden, nothing is NaN"
        yield rule(f"inf/softcap-{name}", note, "SoftcapOrder", inputs=base, want=steps, softcap=2.0)


def _extreme() -> Iterator[Draft]:
    def score(scores: Any, values: Any) -> Tensors:
        s, v = np.array(scores, float), np.array(values, float)
        return {"q": np.ones((1, 1, 1, 1)), "k": s.reshape(1, 1, -1, 1), "v": v.reshape(1, 1, -1, 1)}

    def extreme(name: str, inputs: Tensors, note: str, **more: Any) -> Draft:
        config = {"scale": more.pop("scale", 1)}
        return Draft(f"sdpa/extreme/{name}", "sdpa", inputs, config, ALL, ("Overflow",), note, **more)

    yield extreme(
        "very-negative",
        score([-1e5, -1e5 + np.log(2)], [3, 6]),
        "5: a maximum that starts at 0 underflows",
    )
    yield extreme("very-large", score([3e4, 3e4 - 1], [3, 6]), "exp would overflow in either type")
    yield extreme("spread", score([-1e30, 0, 1e30], [1, 2, 3]), "3: one key takes all")
    big = np.full((1, 1, 1, 64), 3e18)
    yield extreme(
        "scaled-sum",
        {
            "q": big,
            "k": np.concatenate([big, np.zeros_like(big)], axis=2),
            "v": np.array([7.0, 1]).reshape(1, 1, 2, 1),
        },
        "q · k is 5.76e38, beyond f32; scaled first it is 7.2e37, and the output is V[0]",
        scale=None,
    )
    tiny = 2.0**-130
    yield Draft(
        "sdpa/extreme/subnormal",
        "sdpa",
        {"q": np.zeros((1, 1, 1, 1)), "k": np.ones((1, 1, 2, 1)), "v": np.full((1, 1, 2, 1), tiny)},
        {},
        ("output",),
        ("Subnormal",),
        "the mean of two equal subnormal values is that value, exactly",
        exact=("output",),
    )
    yield Draft(
        "sdpa/file/unaligned",
        "sdpa",
        random_inputs("sdpa/file/unaligned", *SIZES),
        {},
        ALL,
        ("FileLayout",),
        "the file's header is 8n + 7 bytes long, its tensors stand in reverse order",
        unaligned_file=True,
    )
