"""A whole transformer over tokens: embeddings, blocks, and a score for every token of the vocabulary.

    x = embedding[tokens] + position_embedding[0 .. T - 1] + segment_embedding[segments]
    logits = norm(blocks(norm(x))) · unembeddingᵀ

Causal it is a decoder (GPT), otherwise an encoder (BERT); the norms are those that it was given.

Letters: B batch, T positions, C model width, V size of the vocabulary, P most positions, S segments.

Sources: Radford et al., "Language models are unsupervised multitask learners", 2019; Devlin et al., "BERT", 2019;
Press and Wolf, "Using the output embedding to improve language models", 2017 (embedding and unembedding tied).
"""

from dataclasses import dataclass
from typing import NamedTuple

from .arrays import Array, IntArray
from .block import Block, Norm
from .cast import op
from .checks import check_transformer
from .heads import linear


class TransformerSteps(NamedTuple):
    """What the last layer gives, and the scores of the vocabulary."""

    output: Array  # (B, T, C)
    logits: Array  # (B, T, V)


@dataclass(frozen=True, eq=False)
class Transformer:
    """The weights of a model. embedding: (V, C). layers: blocks without cross-attention.

    position_embedding: (P, C). segment_embedding: (S, C). embedding_norm, final_norm. None = without.
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
        """`tokens` int64 (B, T) through the model: (B, T, C).

        segments: int64 (B, T), with a segment_embedding. causal: no position sees a later one.
        kv_lengths: int64 (B,), how many tokens of each row exist.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
        """
        return self.steps(tokens, segments, causal=causal, kv_lengths=kv_lengths).output

    @op
    def steps(
        self,
        tokens: IntArray,
        segments: IntArray | None = None,
        *,
        causal: bool = False,
        kv_lengths: IntArray | None = None,
    ) -> TransformerSteps:
        """The call with the logits; same arguments and errors."""
        check_transformer("transformer", tokens, segments, self, causal=causal, kv_lengths=kv_lengths)

        # 1. embed: token, position and segment are added, then normed if there is a norm
        x = self.embedding[tokens]  # (B, T, C)
        if self.position_embedding is not None:
            x = x + self.position_embedding[: tokens.shape[1]]
        if self.segment_embedding is not None and segments is not None:
            x = x + self.segment_embedding[segments]
        x = x if self.embedding_norm is None else self.embedding_norm(x)

        # 2. layers: one after the other
        for layer in self.layers:
            x = layer(x, causal=causal, kv_lengths=kv_lengths)  # (B, T, C)

        # 3. final norm: of a pre-norm model, whose sum of residuals nothing else bounds
        output = x if self.final_norm is None else self.final_norm(x)  # (B, T, C)

        # 4. logits: how well each position's row fits each token's
        table = self.embedding if self.unembedding is None else self.unembedding  # (V, C)
        return TransformerSteps(output, linear(output, table))  # (B, T, C), (B, T, V)
