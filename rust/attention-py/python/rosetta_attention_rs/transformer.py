"""A whole transformer over tokens: embeddings, a stack of blocks, and scores over the vocabulary."""

from dataclasses import dataclass
from typing import NamedTuple

from . import _rust
from .arrays import Array, IntArray
from .block import Block, Norm


class TransformerSteps(NamedTuple):
    """What one call gives."""

    output: Array  # (B, T, C)
    logits: Array  # (B, T, V)


@dataclass(frozen=True, eq=False)
class Transformer:
    """The weights of a model. embedding: (V, C). layers: blocks without cross-attention.

    position_embedding: (P, C). segment_embedding: (S, C), with segments and only then.
    embedding_norm: after the sum of the embeddings. final_norm: after the last block. None = without.
    unembedding: (V, C); None = embedding.
    """

    embedding: Array
    layers: tuple[Block, ...]
    position_embedding: Array | None = None
    segment_embedding: Array | None = None
    embedding_norm: Norm | None = None
    final_norm: Norm | None = None
    unembedding: Array | None = None

    def __call__(
        self,
        tokens: IntArray,
        segments: IntArray | None = None,
        *,
        causal: bool = False,
        kv_lengths: IntArray | None = None,
    ) -> Array:
        """`tokens` int64 (B, T), with `segments` int64 (B, T) if the model has a table of them: (B, T, C).

        causal: no position sees a later one. kv_lengths: int64 (B,), how many tokens of each row exist.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.steps(tokens, segments, causal=causal, kv_lengths=kv_lengths).output

    def steps(
        self,
        tokens: IntArray,
        segments: IntArray | None = None,
        *,
        causal: bool = False,
        kv_lengths: IntArray | None = None,
    ) -> TransformerSteps:
        """The call with its logits; same arguments and errors."""
        return TransformerSteps(*_rust.transformer(self, tokens, segments, causal, kv_lengths))
