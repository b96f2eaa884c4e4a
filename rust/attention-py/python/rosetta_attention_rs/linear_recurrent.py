"""Linear attention token by token: the memory of a fixed size is read and written in turn."""

from . import _rust
from .arrays import Array
from .linear_attention import LinearState, LinearSteps


def linear_recurrent(
    q: Array, k: Array, v: Array, *, causal: bool = False, state: LinearState | None = None
) -> LinearSteps:
    """`linear_attention` by recurrence; same arguments and errors."""
    output, *memory = _rust.linear_recurrent(q, k, v, causal, state)
    return LinearSteps(output, LinearState(*memory))
