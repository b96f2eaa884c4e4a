"""A transformer block: self-attention, perhaps cross-attention, and a feed-forward layer, each around a residual."""

from dataclasses import dataclass

from . import _rust
from .arrays import Array, IntArray
from .feed_forward import FeedForward
from .mha import MultiHeadAttention


@dataclass(frozen=True, eq=False)
class Norm:
    """weight: (C,), None = ones. bias: (C,), of "layer" alone, None = zeros. kind: "layer" or "rms"."""

    weight: Array | None = None
    bias: Array | None = None
    kind: str = "layer"
    eps: float = 1e-5

    def __call__(self, x: Array) -> Array:
        """`x` (..., C) normalised over its last axis. Raises ShapeMismatch, DtypeMismatch, InvalidConfig."""
        return _rust.norm(self, x)


@dataclass(frozen=True, eq=False)
class Block:
    """The layers of a block. norm_1, norm_2, norm_3: of the layers that there are, in the order in which they run.

    cross: attention over a context, and then with a norm_3; None = the block has none.
    norm_first: a norm comes before its layer, instead of after the sum.
    """

    attention: MultiHeadAttention
    feed_forward: FeedForward
    norm_1: Norm
    norm_2: Norm
    cross: MultiHeadAttention | None = None
    norm_3: Norm | None = None
    norm_first: bool = True

    def __call__(
        self,
        x: Array,
        context: Array | None = None,
        *,
        causal: bool = False,
        kv_lengths: IntArray | None = None,
        context_lengths: IntArray | None = None,
    ) -> Array:
        """`x` (B, T, C) through the block, with a context (B, Tk, Cc) for its cross-attention: (B, T, C).

        causal: in self-attention no position sees a later one.
        kv_lengths, context_lengths: int64 (B,), how many positions of x and of the context exist.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return _rust.block(self, x, context, causal, kv_lengths, context_lengths)
