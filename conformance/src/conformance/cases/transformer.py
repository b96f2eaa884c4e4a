"""The suite `block`, its second half: whole stacks, from tokens to logits."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .block import HALF
from .block_weights import block_weights
from .draft import Draft, Other

ALL = ("output", "logits")

BERT: dict[str, Any] = {"num_heads": 2, "norm_first": False, "activation": "gelu"}
GPT: dict[str, Any] = {"num_heads": 2, "causal": True, "activation": "gelu_tanh"}
LLAMA: dict[str, Any] = {
    "num_heads": 4,
    "num_kv_heads": 2,
    "causal": True,
    "norm": "rms",
    "activation": "swiglu",
    "rope": {"base": 500000},
}


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _stacks()
    yield from _options()
    yield from _halves()
    yield from _errors()


def stack(
    name: str,
    layers: int,
    *,
    B: int = 2,
    T: int = 4,
    V: int = 11,
    C: int = 6,
    positions: int | None = 7,
    segments: bool = False,
    embedding_norm: bool = False,
    final_norm: bool = False,
    unembedding: bool = False,
    norm: str = "layer",
    **block: Any,
) -> dict[str, Any]:
    """Tokens and all weights of a stack of so many layers."""
    draw = Draw(name)
    inputs: dict[str, Any] = {"tokens": draw.integers(0, V, B, T), "embedding": draw.normal(V, C)}
    if positions is not None:
        inputs["position_embedding"] = 0.5 * draw.normal(positions, C)
    if segments:
        inputs["segments"] = draw.integers(0, 2, B, T)
        inputs["segment_embedding"] = 0.5 * draw.normal(2, C)
    for place, wanted in (("embedding_norm", embedding_norm), ("final_norm", final_norm)):
        if wanted:
            inputs[f"{place}.weight"] = 1 + 0.5 * draw.normal(C)
            if norm == "layer":
                inputs[f"{place}.bias"] = 0.5 * draw.normal(C)
    if unembedding:
        inputs["unembedding"] = draw.normal(V, C)
    for number in range(layers):
        weights = block_weights(f"{name}/{number}", C=C, norm=norm, **block)
        inputs |= {f"layers.{number}.{key}": x for key, x in weights.items()}
    return inputs


def bert(name: str, layers: int = 2, **more: Any) -> dict[str, Any]:
    """Post-norm, segments, a norm of the embeddings."""
    return stack(name, layers, segments=True, embedding_norm=True, **more)


def gpt(name: str, layers: int = 2, **more: Any) -> dict[str, Any]:
    """Pre-norm, a final norm, the embedding as unembedding."""
    return stack(name, layers, final_norm=True, **more)


def llama(name: str, layers: int = 2, **more: Any) -> dict[str, Any]:
    """RMS norm, no positions but rope's, grouped heads, SwiGLU, no biases."""
    options: dict[str, Any] = {"positions": None, "H": 4, "Hkv": 2, "D": 2, "biases": False}
    options |= {"norm": "rms", "activation": "swiglu", "final_norm": True, "unembedding": True}
    return stack(name, layers, **(options | more))


def _case(
    name: str, inputs: dict[str, Any], kind: dict[str, Any], layers: int, note: str, *flags: str, **more: Any
) -> Draft:
    return Draft(
        f"block/transformer/{name}",
        "transformer",
        inputs,
        {"num_layers": layers} | kind,
        want=ALL,
        flags=flags,
        note=note,
        **more,
    )


def _by_hand() -> Iterator[Draft]:
    table = {"embedding": np.array([[1.0, 0], [0, 2], [3, 3]])}
    tokens = {"tokens": np.array([[2, 0]])}
    kind: dict[str, Any] = {"num_heads": 1}
    yield _case(
        "by-hand/no-layers",
        tokens | table,
        kind,
        0,
        "the rows themselves; logits by all rows: [3, 6, 18], [1, 0, 3]",
        "ByHand",
    )
    positions = {"position_embedding": np.array([[10.0, 0], [20, 0], [99, 99]])}
    yield _case("by-hand/positions", tokens | table | positions, kind, 0, "[13, 3], [21, 0]", "ByHand")
    segments = {"segments": np.array([[1, 0]]), "segment_embedding": np.array([[0.0, 5], [0, 7]])}
    yield _case("by-hand/segments", tokens | table | segments, kind, 0, "[3, 10], [1, 5]", "ByHand")
    out = {"unembedding": np.array([[1.0, -1], [0, 1], [0, 0]])}
    yield _case(
        "by-hand/unembedding",
        tokens | table | out,
        kind,
        0,
        "a table of its own: [0, 3, 0], [1, 0, 0]",
        "ByHand",
    )
    norm = {"final_norm.weight": np.array([1.0, 2])}
    yield _case(
        "by-hand/final-norm",
        {"tokens": np.array([[0, 1]])} | table | norm,
        kind | {"eps": 0},
        0,
        "[1, -2], [-1, 2]",
        "ByHand",
    )


def _stacks() -> Iterator[Draft]:
    for layers in (1, 2, 3):
        yield _case(
            f"bert/{layers}",
            bert(f"block/bert/{layers}", layers),
            BERT,
            layers,
            "post-norm, segments, a norm of the embeddings",
            "ResidualOrder",
            "GeluForm",
        )
        yield _case(
            f"gpt/{layers}",
            gpt(f"block/gpt/{layers}", layers),
            GPT,
            layers,
            "pre-norm, causal, a final norm, the embedding as unembedding",
            "ResidualOrder",
            "GeluForm",
        )
        yield _case(
            f"llama/{layers}",
            llama(f"block/llama/{layers}", layers),
            LLAMA,
            layers,
            "RMS norm, rope, grouped heads, SwiGLU, an unembedding of its own",
            "ResidualOrder",
            "GateOrder",
        )


def _options() -> Iterator[Draft]:
    padded = bert("block/bert/padded") | {"kv_lengths": np.array([4, 2])}
    yield _case("padded", padded, BERT, 2, "a padded batch", "RowIndependence")
    empty_row = gpt("block/gpt/empty-row") | {"kv_lengths": np.array([0, 3])}
    yield _case("empty-row", empty_row, GPT, 2, "a row without keys", "FullyMaskedRow")
    for name, B, T in (("no-tokens", 2, 0), ("no-rows", 0, 3), ("one-token", 1, 1)):
        yield _case(
            f"empty/{name}", gpt(f"block/gpt/{name}", B=B, T=T), GPT, 2, "sizes of 0 and 1", "EmptyKeys"
        )
    yield _case(
        "whole-table", gpt("block/gpt/whole-table", T=7), GPT, 2, "as many tokens as positions", "VectorTail"
    )
    yield _case(
        "no-norms",
        stack("block/no-norms", 1),
        GPT,
        1,
        "neither the embeddings nor the end are normed",
        "AbsentIsNotZero",
    )
    yield _case(
        "both-norms",
        stack("block/both-norms", 1, embedding_norm=True, final_norm=True),
        GPT,
        1,
        "both are",
        "ResidualOrder",
    )
    yield _case(
        "relu", gpt("block/gpt/relu", 1), GPT | {"activation": "relu"}, 1, "another activation", "GeluForm"
    )
    normed = llama("block/llama/qk-norm", 1, qk_norm=True)
    yield _case("qk-norm", normed, LLAMA, 1, "queries and keys normed", "HeadReshape")
    yield _case(
        "eps", gpt("block/gpt/eps"), GPT | {"eps": 0.25}, 2, "one eps for every norm", "VarianceDivisor"
    )
    yield _case("one-word", gpt("block/gpt/one-word", V=1), GPT, 2, "a vocabulary of one", "EmptyKeys")


def _halves() -> Iterator[Draft]:
    for name, make, kind in (("bert", bert, BERT), ("gpt", gpt, GPT), ("llama", llama, LLAMA)):
        for layers in (1, 2):
            inputs = make(f"block/half/{name}/{layers}", layers)
            yield _case(
                f"half/{name}/{layers}",
                inputs,
                kind,
                layers,
                "nothing is rounded in between",
                "HalfInside",
                dtypes=HALF,
            )


def _errors() -> Iterator[Draft]:
    def refused(
        name: str, error: str, note: str, inputs: dict[str, Any] | None = None, **config: Any
    ) -> Draft:
        base = {key: x for key, x in (bert("block/stack/error", 1) | (inputs or {})).items() if x is not None}
        config = {key: x for key, x in ({"num_layers": 1} | BERT | config).items() if x is not ...}
        return Draft(
            f"block/transformer/error/{name}",
            "transformer",
            base,
            config,
            flags=("ErrorCode",),
            note=note,
            error=error,
            dtypes=("f32",),
        )

    zeros = np.zeros
    tokens = zeros((2, 4), np.int64)
    yield refused("token-beyond", "invalid_config", "a token outside of the table", {"tokens": tokens + 11})
    yield refused("token-negative", "invalid_config", "token -1 is not the last row", {"tokens": tokens - 1})
    yield refused(
        "segment-beyond", "invalid_config", "a segment outside of the table", {"segments": tokens + 2}
    )
    yield refused("segment-negative", "invalid_config", "segment -1", {"segments": tokens - 1})
    yield refused(
        "positions", "invalid_config", "more tokens than positions", {"position_embedding": zeros((3, 6))}
    )
    yield refused("layers-negative", "invalid_config", "fewer layers than none", num_layers=-1)
    yield refused("layers-fraction", "invalid_config", "half a layer", num_layers=0.5)
    yield refused("layers-missing", "invalid_request", "no number of layers", num_layers=...)
    yield refused("layers-lack", "invalid_request", "a layer without weights", num_layers=2)
    yield refused("activation", "invalid_config", "an unknown activation", activation="silu")
    yield refused("norm", "invalid_config", "an unknown norm", norm="none")
    yield refused("tokens-rank", "shape_mismatch", "tokens of rank 1", {"tokens": zeros(4, np.int64)})
    yield refused(
        "segments-shape",
        "shape_mismatch",
        "segments of another length",
        {"segments": zeros((2, 3), np.int64)},
    )
    yield refused("embedding-rank", "shape_mismatch", "an embedding of rank 1", {"embedding": zeros(6)})
    yield refused(
        "position-width",
        "shape_mismatch",
        "positions of another width",
        {"position_embedding": zeros((7, 5))},
    )
    yield refused(
        "segment-width", "shape_mismatch", "segments of another width", {"segment_embedding": zeros((2, 5))}
    )
    yield refused(
        "norm-width", "shape_mismatch", "a norm of another width", {"embedding_norm.weight": np.ones(5)}
    )
    yield refused(
        "unembedding-width",
        "shape_mismatch",
        "an unembedding of another width",
        {"unembedding": zeros((11, 5))},
    )
    yield refused(
        "lengths-beyond", "invalid_config", "more tokens than there are", {"kv_lengths": np.array([5, 4])}
    )
    yield refused("tokens-float", "dtype_mismatch", "tokens are integers", {"tokens": zeros((2, 4))})
    yield refused("segments-float", "dtype_mismatch", "segments are integers", {"segments": zeros((2, 4))})
    yield refused(
        "dtype-embedding",
        "dtype_mismatch",
        "an embedding of another float type",
        {"position_embedding": Other(zeros((7, 6)))},
    )
    yield refused(
        "dtype-layer",
        "dtype_mismatch",
        "a layer of another float type",
        {"layers.0.ff.w_1": Other(zeros((9, 6)))},
    )
    yield refused(
        "segments-alone", "invalid_request", "segments without their table", {"segment_embedding": None}
    )
    yield refused(
        "segment-table-alone", "invalid_request", "a table of segments without any", {"segments": None}
    )
    yield refused("missing-tokens", "invalid_request", "no tokens", {"tokens": None})
    yield refused("missing-embedding", "invalid_request", "no embedding", {"embedding": None})
