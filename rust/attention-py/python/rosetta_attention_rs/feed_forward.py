"""The feed-forward layer of a transformer block: two projections with an activation between them."""

from dataclasses import dataclass

from . import _rust
from .arrays import Array


@dataclass(frozen=True, eq=False)
class FeedForward:
    """The weights of one layer, (out, in). w_1: (F, C). w_2: (C, F). w_3: (F, C), with swiglu and only then.

    b_1, b_2, b_3: one value a row of the weights, or None.
    activation: "gelu", "gelu_tanh", "relu" or "swiglu".
    """

    w_1: Array
    w_2: Array
    b_1: Array | None = None
    b_2: Array | None = None
    w_3: Array | None = None
    b_3: Array | None = None
    activation: str = "gelu"

    def __call__(self, x: Array) -> Array:
        """Each position of `x` (..., C) on its own; same shape. Raises ShapeMismatch, DtypeMismatch, InvalidConfig."""
        return _rust.feed_forward(self, x)
