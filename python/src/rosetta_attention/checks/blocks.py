"""Norms, activations, feed-forward layers, blocks and the transformer."""

from typing import Any

from .attention import check_linear_weights
from .call import Call

NORMS = ("layer", "rms")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "swiglu")


def check_norm(name: str, x: Any, weight: Any, bias: Any, eps: Any) -> None:
    """x (..., n) with n >= 1, weight and bias (n,) or None."""
    call = Call(name)
    call.floats(x=x, weight=weight, bias=bias)
    call.shape(len(x.shape) >= 1, "x", "at least one axis", "rank 0")
    n = x.shape[-1]
    call.shape(n >= 1, "x", "at least one channel", n)
    for argument, w in (("weight", weight), ("bias", bias)):
        if w is not None:
            call.has_shape(argument, w, (n,))
    call.not_negative("eps", eps)


def check_elementwise(name: str, a: Any, b: Any) -> None:
    """a and b of one type and shape."""
    call = Call(name)
    call.floats(a=a, b=b)
    call.has_shape("b", b, tuple(a.shape))


def check_norm_kind(name: str, norm: Any) -> None:
    """Which norm it is, and that one of root mean squares has no bias."""
    call = Call(name)
    call.one_of("norm", norm.kind, NORMS)
    call.config(norm.kind == "layer" or norm.bias is None, "bias", "None for rms", "an array")


def check_feed_forward(name: str, x: Any, layer: Any) -> None:
    """x (B, T, C) against w_1 (F, C), w_2 (C, F) and, for swiglu, w_3 (F, C)."""
    call = Call(name)
    call.one_of("activation", layer.activation, ACTIVATIONS)
    gated = layer.activation == "swiglu"
    expected = "an array for swiglu" if gated else f"None for {layer.activation}"
    good = (layer.w_3 is not None) == gated and (gated or layer.b_3 is None)
    call.config(good, "w_3", expected, "None" if layer.w_3 is None else "an array")
    kind = call.floats(x=x)
    call.shape(len(x.shape) >= 1, "x", "at least one axis", "rank 0")
    C = x.shape[-1]
    check_linear_weights(call, "w_1", layer.w_1, C, "b_1", layer.b_1, kind)
    check_linear_weights(call, "w_2", layer.w_2, layer.w_1.shape[0], "b_2", layer.b_2, kind)
    if gated:
        check_linear_weights(call, "w_3", layer.w_3, C, "b_3", layer.b_3, kind)
        call.has_shape("w_3", layer.w_3, tuple(layer.w_1.shape))


def check_block(
    name: str, x: Any, context: Any, block: Any, *, causal: Any, kv_lengths: Any, context_lengths: Any
) -> None:
    """x (B, T, C), and layers that give back rows as wide as they take; the rest those check themselves."""
    call = Call(name)
    call.boolean("norm_first", block.norm_first)
    call.boolean("causal", causal)
    both = (block.cross is None) == (block.norm_3 is None)
    call.config(both, "norm_3", "a norm with cross-attention, None without", block.norm_3)
    expected = "None without cross-attention" if block.cross is None else "a context for cross-attention"
    good = (context is None) == (block.cross is None)
    call.config(good, "context", expected, "None" if context is None else "one")
    call.floats(x=x, context=context)
    call.rank("x", x, "(B, T, C)")
    B, T, C = x.shape
    sums = {"attention.w_o": block.attention.w_o, "ff.w_2": block.feed_forward.w_2}
    if block.cross is not None:
        sums["cross.w_o"] = block.cross.w_o
        call.rank("context", context, "(B, T, C)")
    for argument, w in sums.items():
        call.rank(argument, w, "(out, in)")
        call.shape(w.shape[0] == C, argument, f"{C} rows, so that its output can be added to x", w.shape[0])
    if kv_lengths is not None:
        call.counts("kv_lengths", kv_lengths, B, T)
    if context_lengths is not None:
        call.config(context is not None, "context_lengths", "None without a context", "an array")
        call.counts("context_lengths", context_lengths, B, context.shape[1])


def check_transformer(
    name: str, tokens: Any, segments: Any, model: Any, *, causal: Any, kv_lengths: Any
) -> None:
    """tokens int64 (B, T) and the tables that they and their positions are looked up in."""
    call = Call(name)
    call.dtype("tokens", tokens, "int64")
    if segments is not None:
        call.dtype("segments", segments, "int64")
    tables = {
        "embedding": model.embedding,
        "position_embedding": model.position_embedding,
        "segment_embedding": model.segment_embedding,
        "unembedding": model.unembedding,
    }
    call.floats(**tables)
    call.rank("tokens", tokens, "(B, T)")
    B, T = tokens.shape
    for argument, table in tables.items():
        if table is not None:
            call.rank(argument, table, "(rows, C)")
    V, C = model.embedding.shape
    for argument, table in tables.items():
        if table is not None:
            call.shape(table.shape[1] == C, argument, f"{C} columns as in embedding", table.shape[1])
    if model.unembedding is not None:
        call.has_shape("unembedding", model.unembedding, (V, C))
    both = (segments is None) == (model.segment_embedding is None)
    call.config(both, "segments", "given if and only if there is a segment_embedding", "one of the two")
    call.boolean("causal", causal)
    _check_indices(call, "tokens", tokens, V)
    if segments is not None:
        call.has_shape("segments", segments, (B, T))
        _check_indices(call, "segments", segments, model.segment_embedding.shape[0])
    if model.position_embedding is not None:
        P = model.position_embedding.shape[0]
        call.config(T <= P, "tokens", f"at most {P} positions as in position_embedding", T)
    if kv_lengths is not None:
        call.counts("kv_lengths", kv_lengths, B, T)


def _check_indices(call: Call, argument: str, x: Any, rows: int) -> None:
    """Each 0 <= n < rows."""
    values = x.reshape(-1).tolist()
    wrong = [n for n in values if not 0 <= n < rows]
    call.config(not wrong, argument, f"values from 0 to {rows - 1}", wrong[:3])
