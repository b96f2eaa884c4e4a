"""Linear attention chunk by chunk: pairs inside a chunk, the memory for all that came before it."""

from . import _rust
from .arrays import Array
from .linear_attention import LinearState, LinearSteps


def linear_chunked(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    state: LinearState | None = None,
    chunk: int = 64,
) -> LinearSteps:
    """`linear_attention` in chunks of `chunk` >= 1 positions; same arguments and errors otherwise."""
    output, *memory = _rust.linear_chunked(q, k, v, causal, state, chunk)
    return LinearSteps(output, LinearState(*memory))
