"""Two partial results of attention over different keys, made one."""

from typing import NamedTuple

from . import _rust
from .arrays import Array


class OutputLse(NamedTuple):
    """What attention over some of the keys leaves: enough to merge it with attention over the others."""

    output: Array  # (..., Dv)
    lse: Array  # (...)


def merge(a_output: Array, a_lse: Array, b_output: Array, b_lse: Array) -> OutputLse:
    """The attention over the keys of both parts. a_output, b_output: (..., Dv). a_lse, b_lse: (...), natural.

    A part whose lse is -inf is not read; NaN or +inf in an lse makes its row NaN. Beside half outputs the lse are f32.
    Raises ShapeMismatch, DtypeMismatch.
    """
    return OutputLse(*_rust.merge(a_output, a_lse, b_output, b_lse))
