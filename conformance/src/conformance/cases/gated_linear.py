"""The suite `linear`, its second half: the four gated rules."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other

ALL = ("output", "state")
HALF = ("f16", "bf16")
RULES = ("linear", "gated", "delta", "gated_delta")
INF, NAN = np.inf, np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _rules()
    yield from _values()
    yield from _halves()
    yield from _errors()


def gated_inputs(
    name: str,
    rule: str,
    B: int,
    Hq: int,
    Hkv: int,
    T: int,
    D: int,
    Dv: int,
    *,
    per_channel: bool = True,
    shared_beta: bool = False,
) -> Tensors:
    """q, k, v and what the rule takes. Keys have length 1, as the delta rules want them."""
    draw = Draw(name)
    q, k, v = draw.normal(B, Hq, T, D), draw.normal(B, Hkv, T, D), draw.normal(B, Hkv, T, Dv)
    inputs = {"q": q, "k": k / np.sqrt((k**2).sum(axis=-1, keepdims=True)), "v": v}
    if "gated" in rule:
        inputs["decay"] = -1.5 * draw.uniform(B, Hkv, T, D if per_channel else 1)
    if "delta" in rule:
        inputs["beta"] = 0.1 + 0.9 * draw.uniform(B, 1 if shared_beta else Hkv, T, 1)
    return inputs


def _case(name: str, inputs: dict[str, Any], note: str, *flags: str, **config: Any) -> Draft:
    arrays = {key: np.array(x, float) for key, x in inputs.items()}
    return Draft(f"linear/gated/{name}", "gated_linear", arrays, config, want=ALL, flags=flags, note=note)


def _one_channel(**lists: Any) -> dict[str, Any]:
    """Lists of numbers, one a step, as one head of one channel."""
    return {name: np.array(x, float).reshape(1, 1, -1, 1) for name, x in lists.items()}


def _by_hand() -> Iterator[Draft]:
    half = float(np.log(0.5))
    ones: dict[str, Any] = {"q": [1, 1, 1], "k": [1, 1, 1], "v": [1, 2, 4]}
    yield _case(
        "by-hand/linear",
        _one_channel(**ones),
        "no softmax, no norm: 1, 3, 7",
        "ByHand",
        rule="linear",
        scale=1,
    )
    yield _case(
        "by-hand/gated",
        _one_channel(**ones, decay=[half, half, half]),
        "half is kept each step: 1, 1/2 + 2 = 5/2, 5/4 + 4 = 21/4",
        "ByHand",
        "DecayOrder",
        rule="gated",
        scale=1,
    )
    yield _case(
        "by-hand/delta",
        _one_channel(**ones, beta=[1, 0.5, 1]),
        "beta 1 replaces what is held, beta 1/2 goes half the way: 1, 3/2, 4",
        "ByHand",
        rule="delta",
        scale=1,
    )
    yield _case(
        "by-hand/gated-delta",
        _one_channel(q=[1, 1], k=[1, 1], v=[8, 2], decay=[0, half], beta=[1, 0.5]),
        "8, then 4 after the decay, and half the way from 4 to 2: 3. Corrected before the decay it were 1",
        "ByHand",
        "DecayOrder",
        rule="gated_delta",
        scale=1,
    )
    yield _case(
        "by-hand/state",
        _one_channel(q=[1], k=[1], v=[3]) | {"state": [[[[10]]]]},
        "13, and that is the state",
        "ByHand",
        "StateCarried",
        scale=1,
    )
    yield _case(
        "by-hand/scale",
        {"q": [[[[1, 1, 1, 1]]]], "k": [[[[1, 1, 1, 1]]]], "v": [[[[3]]]]},
        "1/sqrt(4) by default: 1/2 · 4 · 3 = 6",
        "AbsentIsNotZero",
    )
    yield _case(
        "by-hand/scale-zero",
        _one_channel(q=[5], k=[1], v=[3]),
        "scale 0 is 0; the state is 3",
        "AbsentIsNotZero",
        scale=0,
    )
    yield _case(
        "by-hand/two-keys",
        {
            "q": [[[[1, 1], [1, 1]]]],
            "k": [[[[1, 0], [0, 1]]]],
            "v": [[[[5], [7]]]],
            "beta": [[[[1], [1]]]],
        },
        "keys at right angles do not correct each other: 5, 12",
        "ByHand",
        rule="delta",
        scale=1,
    )


def _rules() -> Iterator[Draft]:
    for rule in RULES:
        for T, D, Dv in ((1, 3, 2), (2, 4, 4), (5, 2, 7), (17, 3, 3), (40, 4, 3)):
            name = f"{rule}/{T}x{D}x{Dv}"
            yield _case(
                name,
                gated_inputs(f"linear/gated/{name}", rule, 1, 2, 2, T, D, Dv),
                f"{T} steps, D = {D}, Dv = {Dv}",
                "DecayOrder",
                "ValueDim",
                rule=rule,
            )
        name = f"{rule}/heads"
        yield _case(
            name,
            gated_inputs(f"linear/gated/{name}", rule, 2, 6, 2, 4, 3, 5),
            "6 query heads on 2 states",
            "GqaTile",
            rule=rule,
        )
        name = f"{rule}/state"
        inputs = gated_inputs(f"linear/gated/{name}", rule, 2, 2, 1, 4, 3, 5)
        inputs["state"] = Draw(f"linear/gated/{name}/first").normal(2, 1, 3, 5)
        yield _case(name, inputs, "goes on from a state", "StateCarried", rule=rule)
        name = f"{rule}/no-tokens"
        inputs = gated_inputs(f"linear/gated/{name}", rule, 1, 2, 1, 0, 3, 2)
        inputs["state"] = Draw(f"linear/gated/{name}/first").normal(1, 1, 3, 2)
        yield _case(name, inputs, "nothing new: the state comes back", "EmptyKeys", "StateCarried", rule=rule)
    for rule in ("gated", "gated_delta"):
        name = f"{rule}/scalar-decay"
        inputs = gated_inputs(f"linear/gated/{name}", rule, 2, 2, 2, 5, 3, 2, per_channel=False)
        yield _case(name, inputs, "one decay for all channels", "DecayOrder", rule=rule)
    for rule in ("delta", "gated_delta"):
        name = f"{rule}/shared-beta"
        inputs = gated_inputs(f"linear/gated/{name}", rule, 2, 4, 2, 5, 3, 2, shared_beta=True)
        yield _case(name, inputs, "one beta for all heads", "DecayOrder", rule=rule)
    yield _case(
        "empty/no-rows",
        gated_inputs("linear/gated/empty/no-rows", "linear", 0, 2, 1, 3, 4, 5),
        "no rows",
        "EmptyKeys",
    )
    yield _case(
        "empty/nothing",
        gated_inputs("linear/gated/empty/nothing", "linear", 1, 2, 1, 0, 4, 5),
        "no steps and no state: zeros",
        "EmptyKeys",
    )
    yield _case(
        "scale",
        gated_inputs("linear/gated/scale", "gated", 1, 2, 2, 4, 3, 2),
        "a scale of its own",
        "AbsentIsNotZero",
        rule="gated",
        scale=0.25,
    )


def _values() -> Iterator[Draft]:
    forget = gated_inputs("linear/gated/forget", "gated", 1, 1, 1, 4, 3, 2)
    forget["decay"][0, 0, 2] = -INF
    yield _case("decay/infinite", forget, "a decay of -inf forgets all that was", "DecayOrder", rule="gated")
    keep = gated_inputs("linear/gated/keep", "gated", 1, 1, 1, 4, 3, 2)
    keep["decay"][:] = 0
    yield _case("decay/zero", keep, "a decay of 0 keeps all: the plain rule", "DecayOrder", rule="gated")
    grow = gated_inputs("linear/gated/grow", "gated", 1, 1, 1, 4, 3, 2)
    grow["decay"] *= -0.5
    yield _case("decay/positive", grow, "a positive one lets it grow", "DecayOrder", rule="gated")
    still = gated_inputs("linear/gated/still", "delta", 1, 1, 1, 4, 3, 2)
    still["beta"][:] = 0
    yield _case("beta/zero", still, "beta 0 writes nothing", "AbsentIsNotZero", rule="delta")
    twice = gated_inputs("linear/gated/twice", "delta", 1, 1, 1, 5, 3, 2)
    twice["beta"][:] = 2
    yield _case("beta/two", twice, "beta 2 reflects", "DecayOrder", rule="delta")
    future = gated_inputs("linear/gated/nan", "gated_delta", 1, 2, 1, 4, 3, 2)
    future["v"][0, 0, 2] = NAN
    yield _case(
        "nan", future, "NaN in a value leaves the rows before it alone", "HiddenPoison", rule="gated_delta"
    )


def _halves() -> Iterator[Draft]:
    for rule in RULES:
        inputs = gated_inputs(f"linear/gated/half/{rule}", rule, 1, 4, 2, 6, 3, 4)
        inputs["state"] = Draw(f"linear/gated/half/{rule}/first").normal(1, 2, 3, 4)
        draft = _case(
            f"half/{rule}", inputs, "the state in f32, rounded once at the end", "HalfInside", rule=rule
        )
        yield Draft(**{**vars(draft), "dtypes": HALF})
    draft = _case(
        "half/long",
        gated_inputs("linear/gated/half/long", "gated_delta", 1, 1, 1, 40, 3, 2),
        "40 steps, none of them rounded to a half",
        "HalfInside",
        rule="gated_delta",
    )
    yield Draft(**{**vars(draft), "dtypes": HALF})


def _errors() -> Iterator[Draft]:
    def refused(
        name: str,
        error: str,
        note: str,
        rule: str = "linear",
        inputs: dict[str, Any] | None = None,
        **config: Any,
    ) -> Draft:
        base: dict[str, Any] = dict(gated_inputs("linear/gated/error", rule, 2, 4, 2, 3, 5, 6))
        base |= inputs or {}
        base = {key: x for key, x in base.items() if x is not None}
        return Draft(
            f"linear/gated/error/{name}",
            "gated_linear",
            base,
            {"rule": rule} | config,
            flags=("ErrorCode",),
            note=note,
            error=error,
        )

    zeros = np.zeros
    decay, beta = zeros((2, 2, 3, 5)), zeros((2, 2, 3, 1))
    yield refused("rule", "invalid_config", "an unknown rule", rule="softmax")
    yield refused("decay-taken", "invalid_config", "the plain rule takes no decay", inputs={"decay": decay})
    yield refused("decay-delta", "invalid_config", "the delta rule takes no decay", "delta", {"decay": decay})
    yield refused("beta-taken", "invalid_config", "the gated rule takes no beta", "gated", {"beta": beta})
    yield refused("decay-lacks", "invalid_config", "the gated rule lacks its decay", "gated", {"decay": None})
    yield refused("beta-lacks", "invalid_config", "the delta rule lacks its beta", "delta", {"beta": None})
    yield refused(
        "beta-lacks-gated", "invalid_config", "so does the gated one", "gated_delta", {"beta": None}
    )
    yield refused("rank-q", "shape_mismatch", "q of rank 3", inputs={"q": zeros((4, 3, 5))})
    yield refused(
        "lengths",
        "shape_mismatch",
        "more keys than queries",
        inputs={"k": zeros((2, 2, 4, 5)), "v": zeros((2, 2, 4, 6))},
    )
    yield refused("head-size", "shape_mismatch", "another head size in k", inputs={"k": zeros((2, 2, 3, 4))})
    yield refused(
        "groups",
        "shape_mismatch",
        "4 heads on 3",
        inputs={"k": zeros((2, 3, 3, 5)), "v": zeros((2, 3, 3, 6))},
    )
    yield refused(
        "decay-shape",
        "shape_mismatch",
        "a decay over 4 of 5 channels",
        "gated",
        {"decay": zeros((2, 2, 3, 4))},
    )
    yield refused(
        "decay-heads", "shape_mismatch", "a decay a query head", "gated", {"decay": zeros((2, 4, 3, 5))}
    )
    yield refused("beta-shape", "shape_mismatch", "a beta a channel", "delta", {"beta": zeros((2, 2, 3, 5))})
    yield refused(
        "state-shape", "shape_mismatch", "a state of another size", inputs={"state": zeros((2, 2, 6, 5))}
    )
    yield refused(
        "dtype-v", "dtype_mismatch", "v of another float type", inputs={"v": Other(zeros((2, 2, 3, 6)))}
    )
    yield refused(
        "dtype-decay", "dtype_mismatch", "a decay of another float type", "gated", {"decay": Other(decay)}
    )
    yield refused("dtype-k", "dtype_mismatch", "integers", inputs={"k": zeros((2, 2, 3, 5), np.int64)})
    yield refused("scale-text", "invalid_config", "a scale that is no number", scale="1")
    yield refused("missing-k", "invalid_request", "no keys", inputs={"k": None})
