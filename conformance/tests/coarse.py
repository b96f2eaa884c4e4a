"""Inputs made coarser than f32, and how often the bounds tell the answers apart."""

from collections.abc import Callable
from functools import cache

import numpy as np

from conformance import cases
from conformance.bounds import derive
from conformance.cases.draft import Draft
from conformance.oracle import answer
from conformance.oracle.kv_cache import predict_codes
from conformance.realise import realise
from conformance.tensors import Tensors


@cache
def answered(suite: str) -> list[tuple[Draft, Tensors, Tensors, Tensors]]:
    """Every case of the suite in f32 that has an answer: its inputs, the answer and the bounds."""
    found = []
    for draft in cases.drafts(suite):
        if draft.error is None:
            inputs, expected = realise(draft, "f32")
            assert expected is not None
            found.append(
                (draft, inputs, expected, derive(draft.op, draft.config, inputs, "f32", draft.steps))
            )
    return found


def count_caught(
    suite: str, coarsen: Callable[[np.ndarray], np.ndarray], smallest_input: int
) -> tuple[int, int]:
    """How many cases of the suite are answered out of their bound, and how many were asked.

    Not those by hand, whose small integers no type rounds, nor those with fewer elements than `smallest_input`.
    """
    caught = asked = 0
    for draft, inputs, expected, bounds in answered(suite):
        if "f32" not in draft.dtypes or "by-hand" in draft.id:
            continue
        if sum(x.size for x in inputs.values()) < smallest_input or not any(
            x.size for x in expected.values()
        ):
            continue
        with np.errstate(over="ignore"):
            coarse = {n: coarsen(x) if x.dtype == np.float32 else x for n, x in inputs.items()}
        if draft.steps is not None and predict_codes(draft.config, coarse) != list(draft.steps):
            continue  # what the coarser type cannot hold has no code
        other = answer(draft.op, draft.config, coarse, draft.steps)
        asked += 1
        with np.errstate(invalid="ignore"):  # what is infinite in both is left out
            caught += any(
                (
                    np.abs(other[n] - x)[np.isfinite(x)] > np.broadcast_to(bounds[n], x.shape)[np.isfinite(x)]
                ).any()
                for n, x in expected.items()
                if x.dtype.kind == "f"
            )
    return caught, asked
