"""softmax, sdpa, mha and varlen."""

from typing import Any

from ..ask import Ask, Op, Plan
from ..config import attention_options, q_offset, refuse_both, rope_object
from ..errors import InvalidConfig
from ..read import boolean, due, integer, number, pick, text, window

STEPS = ("output", "weights", "lse", "scores", "capped", "biased")
MHA = ("output", "weights", "lse", "mean_weights")
PAIR = ("output", "lse")
RUNGS = {"flash": ("flash", ("block_q", "block_k")), "split": ("split_kv", ("splits",))}


def softmax(ask: Ask) -> Plan:
    """Rows of any rank."""
    (x,) = ask.due("x")
    return Plan(PAIR, lambda: ask.api.softmax_lse(x), lambda: ask.api.softmax(x))


def sdpa(ask: Ask) -> Plan:
    """naive with all its steps; the other rungs with output and perhaps lse."""
    q, k, v = ask.due("q", "k", "v")
    options = attention_options(ask.library, ask.config, ask.tensors) | ask.some("sinks")
    if ask.variant == "naive":
        return Plan(
            STEPS, lambda: ask.api.sdpa_steps(q, k, v, **options), lambda: ask.api.sdpa(q, k, v, **options)
        )
    if ask.variant in ask.library.sdpa_variants:
        rung = ask.library.sdpa_variants[ask.variant]
    else:
        name, sizes = RUNGS[ask.variant]
        rung = getattr(ask.api, name)
        options |= pick(ask.config, **dict.fromkeys(sizes, integer))
    return Plan(PAIR, lambda: rung(q, k, v, **options))


def mha(ask: Ask) -> Plan:
    """Self-attention, or over a context."""
    x, layer = *ask.due("x"), mha_layer(ask)
    context = ask.some("context")
    if context and "w_qkv" in ask.tensors:
        raise InvalidConfig("w_qkv: expected three projections for a context, got one")
    options = attention_options(ask.library, ask.config, ask.tensors) | ask.some("positions", "head_mask")
    offset = ask.config["rope"].get("offset") if ask.config.get("rope") is not None else None
    refuse_both("positions", offset, options.get("positions"))
    return Plan(MHA, lambda: layer.steps(x, **context, **options), lambda: layer(x, **context, **options))


def mha_layer(ask: Ask, prefix: str = "", *, rotates: bool = True) -> Any:
    """The layer whose tensors have this prefix. rotates: unlike cross-attention, it takes `rope`."""
    make = ask.api.MultiHeadAttention
    options = due(ask.config, num_heads=integer) | pick(ask.config, num_kv_heads=integer, qk_norm_eps=number)
    options |= ask.some("b_o", "q_norm", "k_norm", prefix=prefix)
    rope = rope_object(ask.library, ask.config) if rotates else None
    options |= {} if rope is None else {"rope": rope}
    parts = ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v")
    if prefix + "w_qkv" not in ask.tensors:
        names = ("w_q", "w_k", "w_v", "w_o")
        weights = dict(zip(names, ask.due(*(prefix + name for name in names)), strict=True))
        return make(**weights, **options, **ask.some("b_q", "b_k", "b_v", prefix=prefix))
    if not rotates:
        raise InvalidConfig("w_qkv: expected three projections for a context, got one")
    for name in parts:
        if prefix + name in ask.tensors:
            raise InvalidConfig(f"w_qkv: expected it in place of {prefix}{name}, got both")
    w_qkv, w_o = ask.due(prefix + "w_qkv", prefix + "w_o")
    return make.packed(
        w_qkv, w_o, **options, **pick(ask.config, packing=text), **ask.some("b_qkv", prefix=prefix)
    )


def varlen(ask: Ask) -> Plan:
    """Packed sequences."""
    arrays = ask.due("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
    options = pick(ask.config, causal=boolean, window=window, scale=number, softcap=number)
    offset = q_offset(ask.library, ask.config, ask.tensors)
    rung = ask.library.varlen_variants.get(ask.variant, ask.api.varlen)
    return Plan(PAIR, lambda: rung(*arrays, q_offset=offset, **options))


OPS = {
    "softmax": Op(PAIR, softmax),
    "sdpa": Op(STEPS, sdpa),
    "mha": Op(MHA, mha),
    "varlen": Op(PAIR, varlen),
}
