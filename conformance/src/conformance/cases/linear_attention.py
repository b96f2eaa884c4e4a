"""The suite `linear`, its first half: linear attention. The variants all answer the same cases."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other

ALL = ("output", "state", "norm")
HALF = ("f16", "bf16")
NAN = np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _sizes()
    yield from _states()
    yield from _values()
    yield from _halves()
    yield from _errors()


def linear_inputs(name: str, B: int, Hq: int, Hkv: int, Tq: int, Tk: int, D: int, Dv: int) -> Tensors:
    """q, k, v of these sizes, with weight on the last key and in the last channel."""
    draw = Draw(name)
    q, k, v = draw.normal(B, Hq, Tq, D), draw.normal(B, Hkv, Tk, D), draw.normal(B, Hkv, Tk, Dv)
    q[..., -1:] += 1
    k[:, :, -1:, -1:] += 2
    return {"q": q, "k": k, "v": v}


def with_state(inputs: Tensors, name: str, *, norm: bool = True) -> Tensors:
    """The inputs with what earlier keys have left: a signed state, and a positive norm."""
    draw = Draw(f"{name}/state")
    B, Hkv, _, D = inputs["k"].shape
    state = {"state": 2 * draw.normal(B, Hkv, D, inputs["v"].shape[3])}
    return inputs | state | ({"norm": 1 + 2 * draw.uniform(B, Hkv, D)} if norm else {})


def _case(name: str, inputs: dict[str, Any], note: str, *flags: str, **config: Any) -> Draft:
    arrays = {key: np.array(x, float) for key, x in inputs.items()}
    return Draft(
        f"linear/attention/{name}", "linear_attention", arrays, config, want=ALL, flags=flags, note=note
    )


def _one_head(q: Any, k: Any, v: Any) -> dict[str, Any]:
    """Lists of queries, keys and values, one number each, as one head."""
    return {name: np.array(x, float).reshape(1, 1, -1, 1) for name, x in (("q", q), ("k", k), ("v", v))}


def _by_hand() -> Iterator[Draft]:
    ln2 = float(np.log(2))
    yield _case(
        "by-hand/weights",
        _one_head([0], [0, 2], [8, 4]),
        "features 1 and 3: (1·8 + 3·4) / 4 = 5; state 20, norm 4",
        "ByHand",
    )
    yield _case(
        "by-hand/negative",
        _one_head([0], [-ln2, 0.5], [8, 4]),
        "features e^-ln2 = 1/2 and 3/2: (4 + 6) / 2 = 5",
        "ByHand",
        "FeatureMap",
    )
    yield _case(
        "by-hand/causal",
        _one_head([0, 5, -3], [0, 0, 0], [1, 3, 8]),
        "equal weights: 1, 2, 4, whatever the one channel of q",
        "ByHand",
        "LinearNormaliser",
        causal=True,
    )
    yield _case(
        "by-hand/whole",
        _one_head([0, 5, -3], [0, 0, 0], [1, 3, 8]),
        "not causal: 4 in every row",
        "LinearNormaliser",
    )
    yield _case(
        "by-hand/state",
        _one_head([0], [0], [6]) | {"state": [[[[6]]]], "norm": [[[3]]]},
        "(6 + 6) / (3 + 1) = 3; state 12, norm 4",
        "ByHand",
        "StateCarried",
        causal=True,
    )
    yield _case(
        "by-hand/two-channels",
        {"q": [[[[0, 1]]]], "k": [[[[1, 0], [0, 3]]]], "v": [[[[9], [0]]]]},
        "features (1, 2): weights 2 + 2 = 4 and 1 + 8 = 9, output 36/13",
        "ByHand",
        "FeatureMap",
    )


def _sizes() -> Iterator[Draft]:
    for T in (1, 2, 3, 5, 16, 17, 63, 64, 65, 130):
        name = f"causal/{T}"
        yield _case(
            name,
            linear_inputs(f"linear/{name}", 1, 2, 2, T, T, 4, 3),
            f"{T} positions, causal",
            "ChunkEdge",
            "LinearNormaliser",
            causal=True,
        )
    for chunk, T in ((1, 5), (2, 5), (3, 9), (4, 4), (5, 17), (7, 6), (16, 33)):
        name = f"chunk/{chunk}-{T}"
        yield _case(
            name,
            linear_inputs(f"linear/{name}", 1, 2, 1, T, T, 3, 4),
            f"{T} positions in chunks of {chunk}",
            "ChunkEdge",
            causal=True,
            chunk=chunk,
        )
    for Tq, Tk in ((1, 1), (3, 7), (7, 3), (1, 65), (17, 16)):
        name = f"whole/{Tq}x{Tk}"
        yield _case(
            name,
            linear_inputs(f"linear/{name}", 2, 2, 2, Tq, Tk, 5, 3),
            f"{Tq} queries over {Tk} keys",
            "LinearNormaliser",
        )
    for Hq, Hkv, D, Dv in ((6, 2, 3, 3), (6, 1, 4, 2), (4, 4, 1, 5), (3, 3, 8, 1), (2, 1, 17, 9)):
        name = f"heads/{Hq}-{Hkv}-{D}-{Dv}"
        yield _case(
            name,
            linear_inputs(f"linear/{name}", 2, Hq, Hkv, 4, 4, D, Dv),
            f"{Hq} heads on {Hkv}, D = {D}, Dv = {Dv}",
            "GqaTile",
            "ValueDim",
            causal=True,
        )
    for name, sizes in {
        "no-keys": (2, 2, 1, 3, 0, 4, 5),
        "no-queries": (2, 2, 1, 0, 3, 4, 5),
        "no-rows": (0, 2, 1, 3, 3, 4, 5),
        "nothing": (1, 1, 1, 0, 0, 2, 2),
    }.items():
        yield _case(
            f"empty/{name}",
            linear_inputs(f"linear/empty/{name}", *sizes),
            "sizes of 0: no keys give 0 and an empty state",
            "EmptyKeys",
        )


def _states() -> Iterator[Draft]:
    for T, chunk in ((1, 64), (3, 64), (5, 2), (17, 16)):
        name = f"state/{T}-{chunk}"
        inputs = with_state(linear_inputs(f"linear/{name}", 2, 4, 2, T, T, 3, 5), name)
        yield _case(name, inputs, "goes on from a state", "StateCarried", "GqaTile", causal=True, chunk=chunk)
    inputs = with_state(linear_inputs("linear/state/whole", 1, 2, 2, 3, 5, 3, 2), "state/whole")
    yield _case("state/whole", inputs, "a state, all keys seen", "StateCarried")
    inputs = with_state(linear_inputs("linear/state/no-keys", 1, 2, 1, 3, 0, 3, 2), "state/no-keys")
    yield _case("state/no-keys", inputs, "no keys: the state alone answers", "StateCarried", "EmptyKeys")
    inputs = with_state(linear_inputs("linear/state/no-tokens", 1, 2, 1, 0, 0, 3, 2), "state/no-tokens")
    yield _case(
        "state/no-tokens",
        inputs,
        "nothing new: the state comes back",
        "StateCarried",
        "EmptyKeys",
        causal=True,
    )
    zeros = linear_inputs("linear/state/zeros", 1, 1, 1, 2, 2, 3, 2)
    zeros |= {"state": np.zeros((1, 1, 3, 2)), "norm": np.zeros((1, 1, 3))}
    yield _case("state/zeros", zeros, "a state of zeros is none", "StateCarried", causal=True)
    # The second half of a sequence, from what its first half left: linear/attention/parts/whole has both.
    whole = linear_inputs("linear/parts", 1, 2, 1, 9, 9, 3, 4)
    yield _case("parts/whole", whole, "a sequence of 9, whole", "StateCarried", causal=True)
    yield _case(
        "parts/first",
        {name: x[:, :, :4] for name, x in whole.items()},
        "its first 4 positions",
        "StateCarried",
        causal=True,
    )
    features = np.where(whole["k"] > 0, whole["k"] + 1, np.exp(whole["k"]))[:, :, :4]
    rest = {name: x[:, :, 4:] for name, x in whole.items()}
    rest |= {"state": np.swapaxes(features, -1, -2) @ whole["v"][:, :, :4], "norm": features.sum(axis=2)}
    yield _case("parts/rest", rest, "the other 5, from what the first left", "StateCarried", causal=True)


def _values() -> Iterator[Draft]:
    future = linear_inputs("linear/nan-future", 1, 1, 1, 4, 4, 3, 2)
    future["k"][0, 0, 2] = NAN
    future["v"][0, 0, 3] = NAN
    yield _case(
        "nan/future",
        future,
        "NaN in a later key or value leaves the rows before it alone",
        "HiddenPoison",
        "VisibleNaN",
        causal=True,
    )
    query = linear_inputs("linear/nan-query", 1, 2, 1, 3, 3, 3, 2)
    query["q"][0, 1, 1, 0] = NAN
    yield _case("nan/query", query, "NaN in a query makes its own row NaN", "VisibleNaN", causal=True)
    sharp = linear_inputs("linear/negative", 1, 2, 2, 5, 5, 4, 3)
    sharp["q"] -= 2
    sharp["k"] -= 2
    yield _case("negative", sharp, "mostly negative channels: features near 0", "FeatureMap", causal=True)
    large = linear_inputs("linear/large", 1, 2, 2, 5, 5, 4, 3)
    large = {name: 100 * x for name, x in large.items()}
    yield _case("large", large, "channels of hundreds: e^x above 0 would overflow", "FeatureMap", "Overflow")
    nothing = _one_head([-2000, 0], [0, 1], [3, 4])
    yield _case(
        "no-weight",
        nothing,
        "a query whose features underflow to 0: the denominator is 0, and so is the output",
        "FullyMaskedRow",
    )


def _halves() -> Iterator[Draft]:
    for name, sizes, config in (
        ("causal", (2, 4, 2, 5, 5, 3, 4), {"causal": True}),
        ("whole", (1, 2, 2, 3, 9, 4, 3), {}),
        ("long", (1, 1, 1, 40, 40, 3, 2), {"causal": True}),
        ("chunk", (1, 2, 1, 9, 9, 3, 2), {"causal": True, "chunk": 4}),
    ):
        draft = _case(
            f"half/{name}",
            linear_inputs(f"linear/half/{name}", *sizes),
            "sums in f32, each result rounded once",
            "HalfInside",
            **config,
        )
        yield Draft(**{**vars(draft), "dtypes": HALF})
    inputs = with_state(linear_inputs("linear/half/state", 1, 2, 1, 3, 3, 3, 2), "half/state")
    draft = _case("half/state", inputs, "a state in halves", "HalfInside", "StateCarried", causal=True)
    yield Draft(**{**vars(draft), "dtypes": HALF})


def _errors() -> Iterator[Draft]:
    def refused(
        name: str, error: str, note: str, inputs: dict[str, Any] | None = None, **config: Any
    ) -> Draft:
        base: dict[str, Any] = dict(linear_inputs("linear/error", 2, 4, 2, 3, 3, 5, 6))
        base |= inputs or {}
        base = {key: x for key, x in base.items() if x is not None}
        return Draft(
            f"linear/attention/error/{name}",
            "linear_attention",
            base,
            config,
            flags=("ErrorCode",),
            note=note,
            error=error,
        )

    zeros = np.zeros
    state, norm = zeros((2, 2, 5, 6)), np.ones((2, 2, 5))
    yield refused("rank-q", "shape_mismatch", "q of rank 3", {"q": zeros((4, 3, 5))})
    yield refused("batch", "shape_mismatch", "another batch in k", {"k": zeros((1, 2, 3, 5))})
    yield refused("head-size", "shape_mismatch", "another head size in k", {"k": zeros((2, 2, 3, 4))})
    yield refused(
        "groups", "shape_mismatch", "4 heads on 3", {"k": zeros((2, 3, 3, 5)), "v": zeros((2, 3, 3, 6))}
    )
    yield refused("values", "shape_mismatch", "fewer values than keys", {"v": zeros((2, 2, 2, 6))})
    yield refused(
        "causal-lengths",
        "shape_mismatch",
        "causal with Tq other than Tk",
        {"q": zeros((2, 4, 2, 5))},
        causal=True,
    )
    yield refused(
        "state-shape",
        "shape_mismatch",
        "a state of another size",
        {"state": zeros((2, 2, 6, 5)), "norm": norm},
    )
    yield refused(
        "state-heads",
        "shape_mismatch",
        "a state a query head",
        {"state": zeros((2, 4, 5, 6)), "norm": np.ones((2, 4, 5))},
    )
    yield refused(
        "norm-shape", "shape_mismatch", "a norm over values", {"state": state, "norm": np.ones((2, 2, 6))}
    )
    yield refused("state-alone", "invalid_request", "a state without its norm", {"state": state})
    yield refused("norm-alone", "invalid_request", "a norm without its state", {"norm": norm})
    yield refused("dtype-k", "dtype_mismatch", "k of another float type", {"k": Other(zeros((2, 2, 3, 5)))})
    yield refused(
        "dtype-state",
        "dtype_mismatch",
        "a state of another float type",
        {"state": Other(state), "norm": norm},
    )
    yield refused("dtype-q", "dtype_mismatch", "integers", {"q": zeros((2, 4, 3, 5), np.int64)})
    yield refused("causal-number", "invalid_config", "causal is true or false", causal=1)
    yield refused("missing-v", "invalid_request", "no values", {"v": None})
