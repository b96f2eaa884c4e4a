"""A transformer block: self-attention, perhaps cross-attention, and a feed-forward layer, each around a residual.

    pre-norm    x = x + f(norm(x))        post-norm    x = norm(x + f(x))        for each f in turn

Letters: B batch, T positions, C model width, Tk and Cc length and width of the context.

Sources: Vaswani et al., 2017, section 3.1 (post-norm); Xiong et al., "On layer normalization in the transformer
architecture", 2020 (pre-norm).
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..checks import check_block, check_norm_kind
from .cast import op
from .feed_forward import FeedForward
from .layer_norm import layer_norm
from .masks import Mask
from .mha import MultiHeadAttention
from .rms_norm import rms_norm


@dataclass(frozen=True, eq=False)
class Norm:
    """weight: (C,) or None. bias: (C,) or None, for "layer" alone. kind: "layer" or "rms"."""

    weight: Tensor | None = None
    bias: Tensor | None = None
    kind: str = "layer"
    eps: float = 1e-5

    @op
    def __call__(self, x: Tensor) -> Tensor:
        """`x` (..., C) normalised over its last axis. Raises ShapeMismatch, DtypeMismatch, InvalidConfig."""
        check_norm_kind("norm", self)
        if self.kind == "rms":
            return rms_norm(x, self.weight, eps=self.eps)
        return layer_norm(x, self.weight, self.bias, eps=self.eps)


@dataclass(frozen=True, eq=False)
class Block:
    """The layers of one block. norm_1, norm_2, norm_3: of the layers that there are, in the order they run.

    cross: cross-attention, then with a norm_3; or None. norm_first: pre-norm, else post-norm.
    """

    attention: MultiHeadAttention
    feed_forward: FeedForward
    norm_1: Norm
    norm_2: Norm
    cross: MultiHeadAttention | None = None
    norm_3: Norm | None = None
    norm_first: bool = True

    @op
    def __call__(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        causal: bool = False,
        kv_lengths: Tensor | None = None,
        context_lengths: Tensor | None = None,
    ) -> Tensor:
        """`x` (B, T, C) through the block: (B, T, C). context: (B, Tk, Cc), for cross-attention.

        causal: in self-attention, no position sees a later one. kv_lengths, context_lengths: int64 (B,), how many
        positions of x and of the context exist.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        check_block(
            "block",
            x,
            context,
            self,
            causal=causal,
            kv_lengths=kv_lengths,
            context_lengths=context_lengths,
        )

        # 1. self-attention: each position over the others
        mask = Mask(causal=causal, kv_lengths=kv_lengths)
        x = self._around(self.norm_1, lambda y: self.attention(y, mask=mask), x)  # (B, T, C)
        last = self.norm_2

        # 2. cross-attention: each position over the context, in decoders that have one
        if self.cross is not None and self.norm_3 is not None:
            cross, shown = self.cross, Mask(kv_lengths=context_lengths)
            x = self._around(self.norm_2, lambda y: cross(y, context, mask=shown), x)  # (B, T, C)
            last = self.norm_3

        # 3. feed-forward: each position on its own
        return self._around(last, self.feed_forward, x)  # (B, T, C)

    def _around(self, norm: Norm, layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The layer, with the norm before it or after the sum."""
        return x + layer(norm(x)) if self.norm_first else norm(x + layer(x))
