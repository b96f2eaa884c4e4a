"""Dropout whose mask every language draws alike."""

from dataclasses import dataclass
from typing import NamedTuple

from . import _rust
from .arrays import Array, BoolArray


@dataclass(frozen=True)
class Dropout:
    """p: the probability, 0 to 1, that an element is dropped. seed: 0 to 2^53 - 1."""

    p: float
    seed: int


class DropoutSteps(NamedTuple):
    """The output of one call, and which elements were kept."""

    output: Array  # (...)
    keep: BoolArray  # (...)


def dropout(x: Array, options: Dropout, *, offset: int = 0) -> Array:
    """`x` with elements dropped, and the others divided by 1 - p; any shape. offset: the index of the first element.

    Raises DtypeMismatch, InvalidConfig.
    """
    return dropout_steps(x, options, offset=offset).output


def dropout_steps(x: Array, options: Dropout, *, offset: int = 0) -> DropoutSteps:
    """`dropout` with the table of kept elements; same arguments and errors."""
    return DropoutSteps(*_rust.dropout(x, options, offset))
