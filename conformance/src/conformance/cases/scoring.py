"""The suite `scoring`: the four forms of score."""

from collections.abc import Iterator
from math import log, sqrt
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other

ALL = ("output", "weights", "scores")
FORMS = ("additive", "dot", "general", "scaled")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _sizes()
    yield from _lengths()
    yield from _special()
    yield from _halves()
    yield from _errors()


def scoring_inputs(
    name: str, form: str, B: int, Tq: int, Tk: int, Dq: int, Dk: int, Dv: int, A: int = 4
) -> Tensors:
    """Random inputs; Dk is Dq where the form demands it."""
    draw = Draw(f"scoring/{name}")
    Dk = Dq if form in ("dot", "scaled") else Dk
    inputs = {"q": draw.normal(B, Tq, Dq), "k": draw.normal(B, Tk, Dk), "v": draw.normal(B, Tk, Dv)}
    if form == "additive":
        inputs |= {"w_q": draw.normal(A, Dq), "w_k": draw.normal(A, Dk), "w_v": 2 * draw.normal(A)}
    elif form == "general":
        inputs["w"] = draw.normal(Dq, Dk)
    return inputs


def _case(name: str, form: str, inputs: Any, note: str, *flags: str, **more: Any) -> Draft:
    flags = ("ScoreForm", *flags)
    return Draft(f"scoring/{name}", "scoring", inputs, {"form": form}, ALL, flags, note, **more)


def _by_hand() -> Iterator[Draft]:
    values = np.array([3.0, 6]).reshape(1, 2, 1)
    base = {"q": np.full((1, 1, 4), 0.5), "v": values}
    keys = np.stack([np.zeros(4), np.full(4, log(2) / 2)])[None]
    yield _case(
        "by-hand/dot", "dot", base | {"k": keys}, "scores 0 and ln 2: weights 1/3 and 2/3, output 5", "ByHand"
    )
    note = "scores 0 and ln 2, 1/sqrt(4) in them; dot would give 5.4"
    yield _case("by-hand/scaled", "scaled", base | {"k": 2 * keys}, note, "ByHand")
    general = {"q": np.array([[[1.0, 0]]]), "k": np.array([[[0.0, 0, 1], [0, 0, 0]]]), "v": values}
    w = {"w": np.array([[0, 0, log(2)], [5, 5, 5]])}
    note = "(q W) k: row 0 of W alone: scores ln 2 and 0, output 4"
    yield _case("by-hand/general", "general", general | w, note, "ByHand", "AxisOrder")
    additive = {
        "q": np.array([[[1.0]]]),
        "k": np.array([[[0.0], [-1]]]),
        "v": values,
        "w_q": np.array([[1.0], [0]]),
        "w_k": np.array([[1.0], [1]]),
        "w_v": np.array([2.0, 0]),
    }
    note = "scores 2 tanh 1 and 2 tanh 0: 1.523188 and 0"
    yield _case("by-hand/additive", "additive", additive, note, "ByHand")
    unscaled = {"q": np.ones((1, 1, 2)) / sqrt(2), "k": np.zeros((1, 2, 2)), "v": values}
    yield _case("by-hand/uniform", "dot", unscaled, "scores 0: the mean 4.5", "ByHand")


def _sizes() -> Iterator[Draft]:
    for form in FORMS:
        for n, (Tq, Tk, Dq, Dk, Dv) in enumerate(
            ((3, 5, 4, 6, 7), (1, 17, 8, 3, 2), (16, 2, 9, 16, 33), (2, 1, 1, 2, 1))
        ):
            name = f"{form}/{n}"
            note = f"Tq = {Tq}, Tk = {Tk}, Dq = {Dq}"
            inputs = scoring_inputs(name, form, 2, Tq, Tk, Dq, Dk, Dv)
            yield _case(name, form, inputs, note, "VectorTail", "AxisOrder")
        for name, sizes in {"rows": (0, 2, 3), "queries": (2, 0, 3), "keys": (2, 3, 0)}.items():
            inputs = scoring_inputs(f"{form}/empty/{name}", form, *sizes, 4, 5, 3)
            yield _case(
                f"{form}/empty/{name}", form, inputs, "sizes of 0; no key means output 0", "EmptyKeys"
            )
    for A in (1, 7, 16, 17):
        inputs = scoring_inputs(f"additive/width/{A}", "additive", 1, 3, 4, 5, 6, 2, A)
        yield _case(f"additive/width/{A}", "additive", inputs, f"a hidden layer of {A}", "VectorTail")


def _lengths() -> Iterator[Draft]:
    for form in FORMS:
        inputs = scoring_inputs(f"{form}/lengths", form, 3, 2, 5, 4, 3, 2)
        inputs |= {"kv_lengths": np.array([0, 3, 5])}
        inputs["k"][1, 3:], inputs["v"][1, 3:] = np.nan, np.inf
        note = "no key, three, all; NaN beyond"
        # The scores of hidden keys are asked for nowhere: here they are NaN.
        yield Draft(
            f"scoring/{form}/lengths",
            "scoring",
            inputs,
            {"form": form},
            ("output", "weights"),
            ("ScoreForm", "FullyMaskedRow", "HiddenPoison", "RowIndependence"),
            note,
        )


def _special() -> Iterator[Draft]:
    inputs = scoring_inputs("large", "dot", 1, 2, 5, 3, 3, 2)
    inputs["q"] = inputs["q"] * 1e3
    yield _case("large", "dot", inputs, "scores of thousands", "Overflow")
    saturated = scoring_inputs("saturated", "additive", 1, 2, 4, 3, 3, 2)
    saturated["w_k"] = saturated["w_k"] * 1e4
    yield _case("saturated", "additive", saturated, "tanh at its ends", "Overflow")
    visible = scoring_inputs("nan", "scaled", 1, 3, 4, 3, 3, 2)
    visible["q"][0, 1, 0] = np.nan
    yield _case(
        "nan", "scaled", visible, "NaN in one query makes its row NaN", "VisibleNaN", "RowIndependence"
    )


def _halves() -> Iterator[Draft]:
    for form in FORMS:
        inputs = scoring_inputs(f"half/{form}", form, 2, 3, 9, 6, 5, 4)
        yield _case(f"half/{form}", form, inputs, "f32 inside", "HalfInside", dtypes=("f16", "bf16"))
    lengths = scoring_inputs("half/lengths", "scaled", 2, 3, 9, 6, 6, 4) | {"kv_lengths": np.array([4, 0])}
    yield _case("half/lengths", "scaled", lengths, "with lengths", "HalfInside", dtypes=("f16", "bf16"))


def _errors() -> Iterator[Draft]:
    def refused(name: str, error: str, note: str, form: Any, inputs: dict[str, Any] | None = None) -> Draft:
        known = form if form in FORMS else "dot"
        base: dict[str, Any] = dict(scoring_inputs("error", known, 2, 3, 5, 4, 6, 7))
        base = {key: x for key, x in (base | (inputs or {})).items() if x is not None}
        config = {} if form is None else {"form": form}
        return Draft(
            f"scoring/error/{name}", "scoring", base, config, flags=("ErrorCode",), note=note, error=error
        )

    zeros = np.zeros
    shape, dtype, config, request = "shape_mismatch", "dtype_mismatch", "invalid_config", "invalid_request"
    yield refused("form", config, "no such form", "cosine")
    yield refused("form-missing", request, "no form", None)
    yield refused("rank", shape, "q of rank 2", "dot", {"q": zeros((3, 4))})
    yield refused("batch", shape, "another batch in k", "dot", {"k": zeros((1, 5, 4))})
    yield refused("keys", shape, "fewer values than keys", "dot", {"v": zeros((2, 4, 7))})
    yield refused("dot-size", shape, "queries of 4, keys of 6", "dot", {"k": zeros((2, 5, 6))})
    yield refused("scaled-size", shape, "the same for scaled", "scaled", {"k": zeros((2, 5, 6))})
    yield refused("general-w", shape, "w is (Dq, Dk), not (Dk, Dq)", "general", {"w": zeros((6, 4))})
    yield refused("additive-w-q", shape, "w_q over other channels", "additive", {"w_q": zeros((4, 5))})
    yield refused("additive-w-k", shape, "w_k of another hidden width", "additive", {"w_k": zeros((3, 6))})
    yield refused("additive-w-v", shape, "w_v of another hidden width", "additive", {"w_v": zeros(3)})
    yield refused("lengths", shape, "three lengths for two rows", "dot", {"kv_lengths": np.array([1, 2, 3])})
    yield refused(
        "lengths-beyond", config, "more keys than there are", "dot", {"kv_lengths": np.array([1, 6])}
    )
    yield refused("lengths-negative", config, "fewer than none", "dot", {"kv_lengths": np.array([-1, 2])})
    yield refused("lengths-float", dtype, "lengths are whole", "dot", {"kv_lengths": np.array([1.0, 2.0])})
    yield refused("dtype-k", dtype, "keys of another float type", "dot", {"k": Other(zeros((2, 5, 4)))})
    yield refused("dtype-w", dtype, "a weight of another float type", "general", {"w": Other(zeros((4, 6)))})
    yield refused("dot-w", config, "dot has no weights", "dot", {"w": zeros((4, 4))})
    yield refused("scaled-w-v", config, "nor has scaled", "scaled", {"w_v": zeros(4)})
    yield refused("general-w-q", config, "a weight of additive", "general", {"w_q": zeros((4, 4))})
    yield refused("additive-w", config, "a weight of general", "additive", {"w": zeros((4, 6))})
    yield refused("missing-w", request, "general without w", "general", {"w": None})
    yield refused("missing-w-v", request, "additive without w_v", "additive", {"w_v": None})
    yield refused("missing-k", request, "no keys", "dot", {"k": None})
