"""How a case is written down: an id, an op, its config, float64 inputs, and what it catches.

Float inputs are written once in float64 and rounded to each dtype of the case; boolean and integer inputs stay.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..tensors import Tensors


@dataclass(frozen=True)
class Other:
    """A float input that is meant to be of the other float dtype than the case."""

    value: np.ndarray


@dataclass(frozen=True)
class Draft:
    """A case before it has files. `error` is the code that must come instead of a result."""

    id: str
    op: str
    inputs: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    want: tuple[str, ...] = ("output",)
    flags: tuple[str, ...] = ()
    note: str = ""
    error: str | None = None
    steps: tuple[str, ...] | None = None
    exact: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("f32", "f64")
    unaligned_file: bool = False


def score_form(scores: Any, values: Any) -> Tensors:
    """One head, D = 1, queries of 1 and keys that are the scores (Tq rows share them): read the weights off by eye."""
    scores, values = np.atleast_1d(np.array(scores, float)), np.atleast_1d(np.array(values, float))
    return {
        "q": np.ones((1, 1, 1, 1)),
        "k": scores.reshape(1, 1, -1, 1),
        "v": values.reshape(1, 1, -1, 1),
    }


def uniform_form(num_queries: int, values: Any) -> Tensors:
    """Queries of 0: every visible key weighs the same, and the output is the mean of the visible values."""
    values = np.array(values, float)
    return {
        "q": np.zeros((1, 1, num_queries, 1)),
        "k": np.ones((1, 1, len(values), 1)),
        "v": values.reshape(1, 1, -1, 1),
    }
