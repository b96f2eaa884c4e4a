"""Blocks and the transformer, whose weights have dotted names."""

from typing import Any

from ..ask import Ask, Op, Plan, single
from ..errors import InvalidConfig, InvalidRequest
from ..read import boolean, due, integer, number, pick, text
from .attention import mha_layer


def block(ask: Ask) -> Plan:
    """Self-attention, cross-attention with a context, feed-forward."""
    (x,) = ask.due("x")
    context = ask.some("context")
    layer = _block(ask, "", with_context=bool(context))
    options = context | ask.some("kv_lengths", "context_lengths") | pick(ask.config, causal=boolean)
    return single(lambda: layer(x, **options))


def transformer(ask: Ask) -> Plan:
    """Embeddings, blocks, logits."""
    tokens, embedding = ask.due("tokens", "embedding")
    num_layers = due(ask.config, num_layers=integer)["num_layers"]
    if num_layers < 0:
        raise InvalidConfig(f"num_layers: expected an integer >= 0, got {num_layers}")
    tables = ask.some("position_embedding", "segment_embedding", "unembedding")
    segments = ask.some("segments")
    if len(segments) != ("segment_embedding" in tables):
        raise InvalidRequest("inputs: expected segments and segment_embedding or neither, got one of them")
    norms = {name: _norm(ask, name) for name in ("embedding_norm", "final_norm") if _has_norm(ask, name)}
    layers = tuple(_block(ask, f"layers.{n}.", with_context=False) for n in range(num_layers))
    model = ask.api.Transformer(embedding, layers, **tables, **norms)
    options = segments | ask.some("kv_lengths") | pick(ask.config, causal=boolean)
    return Plan(
        ("output", "logits"),
        lambda: model.steps(tokens, **options),
        lambda: model(tokens, **options),
    )


def _block(ask: Ask, prefix: str, *, with_context: bool) -> Any:
    """The block whose tensors have this prefix."""
    layers: dict[str, Any] = {"attention": mha_layer(ask, prefix + "attention.")}
    names = ["norm_1", "norm_2"]
    if with_context:
        layers["cross"] = mha_layer(ask, prefix + "cross.", rotates=False)
        names.append("norm_3")
    elif any(name.startswith(prefix + "cross.") for name in ask.tensors):
        raise InvalidRequest(f"inputs: expected a context for {prefix}cross, got none")
    for name in names:
        ask.due(f"{prefix}{name}.weight")
        layers[name] = _norm(ask, prefix + name)
    layers["feed_forward"] = _feed_forward(ask, prefix + "ff.")
    return ask.api.Block(**layers, **pick(ask.config, norm_first=boolean))


def _norm(ask: Ask, name: str) -> Any:
    """The norm of this name, of the kind that all norms of a request have."""
    options = ask.some("weight", "bias", prefix=name + ".") | pick(ask.config, eps=number)
    kind = pick(ask.config, norm=text)
    return ask.api.Norm(**options, **({"kind": kind["norm"]} if kind else {}))


def _has_norm(ask: Ask, name: str) -> bool:
    """Whether there is a tensor of it."""
    return f"{name}.weight" in ask.tensors or f"{name}.bias" in ask.tensors


def _feed_forward(ask: Ask, prefix: str) -> Any:
    """Two projections, or three for swiglu."""
    activation = pick(ask.config, activation=text)
    gated = activation.get("activation") == "swiglu"
    names = ("w_1", "w_2", "w_3") if gated else ("w_1", "w_2")
    weights = dict(zip(names, ask.due(*(prefix + name for name in names)), strict=True))
    biases = ask.some(*(name.replace("w", "b") for name in names), prefix=prefix)
    return ask.api.FeedForward(**weights, **biases, **activation)


OPS = {"block": Op(("output",), block), "transformer": Op(("output", "logits"), transformer)}
