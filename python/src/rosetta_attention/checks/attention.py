"""softmax, masks, sdpa and multi-head attention, with the dropout and the types that they share."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from ..errors import Unsupported
from .call import FLOATS, Call, dtype_name, is_integer, is_number
from .positions import check_rope


def check_softmax(x: Any, sink: Any) -> None:
    """x (..., n), sink broadcastable to (...) or None."""
    call = Call("softmax")
    call.floats(x=x, sink=sink)
    call.shape(len(x.shape) >= 1, "x", "at least one axis", "rank 0")
    if sink is not None:
        call.broadcasts("sink", sink, tuple(x.shape[:-1]))


def check_cast(name: str, x: Any, to: Any, known: Sequence[str]) -> None:
    """x of any shape; `to` one of the known names."""
    Call(name).dtype("x", x, *FLOATS)
    if to not in known:
        raise Unsupported(f"cast.{to}")


def check_dropout(name: str, dropout: Any) -> None:
    """The probability and the seed of a Dropout."""
    call = Call(name)
    good = hasattr(dropout, "p") and hasattr(dropout, "seed")
    call.config(good, "dropout", "a Dropout of p and seed", dropout)
    call.config(is_number(dropout.p) and 0 <= dropout.p <= 1, "p", "a number from 0 to 1", dropout.p)
    call.seed("seed", dropout.seed)


def check_mask(name: str, mask: Any, shape: tuple[int, int, int, int]) -> None:
    """Against the shape (B, Hq, Tq, Tk) that the mask is asked for."""
    call = Call(name)
    batch, _, _, kv_len = shape
    if mask.keep is not None:
        call.dtype("mask", mask.keep, "bool")
        call.broadcasts("mask", mask.keep, shape)
    call.boolean("causal", mask.causal)
    check_window(call, mask.window)
    if mask.kv_lengths is not None:
        call.counts("kv_lengths", mask.kv_lengths, batch, kv_len)
    check_q_offset(call, mask.q_offset, batch)
    kv_positions = getattr(mask, "kv_positions", None)  # which torch does not have
    if kv_positions is not None:
        call.dtype("kv_positions", kv_positions, "int64")
        call.has_shape("kv_positions", kv_positions, (batch, kv_len))


def check_window(call: Call, window: Any) -> None:
    """None, or (left, right) with None or an integer on each side."""
    if window is not None:
        pair = isinstance(window, Sequence) and len(window) == 2
        call.config(pair, "window", "a pair (left, right)", window)
        for side in window:
            good = side is None or (is_integer(side) and side >= 0)
            call.config(good, "window", "None or an integer >= 0 on each side", window)


def check_q_offset(call: Call, q_offset: Any, rows: int) -> None:
    """None, an integer, or int64 (rows,)."""
    if q_offset is not None and not is_integer(q_offset):
        array = hasattr(q_offset, "dtype") and not isinstance(q_offset, Integral)
        call.config(array, "q_offset", "an integer or int64 (B,)", q_offset)
        call.dtype("q_offset", q_offset, "int64")
        call.has_shape("q_offset", q_offset, (rows,))


def check_scalars(call: Call, scale: Any, softcap: Any = None) -> None:
    """The two numbers that scores are made with."""
    if scale is not None:
        call.config(is_number(scale), "scale", "a finite number", scale)
    if softcap is not None:
        call.positive("softcap", softcap)


def check_sdpa(
    name: str,
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any,
    bias: Any,
    scale: float | None,
    softcap: float | None,
    sinks: Any,
    dropout: Any = None,
) -> None:
    """q (B, Hq, Tq, D), k (B, Hkv, Tk, D), v (B, Hkv, Tk, Dv) and everything that goes with them."""
    call = Call(name)
    call.floats(q=q, k=k, v=v, bias=bias, sinks=sinks)
    call.qkv(q, k, v)
    shape = (*q.shape[:3], k.shape[2])
    if bias is not None:
        call.broadcasts("bias", bias, shape)
    if sinks is not None:
        call.has_shape("sinks", sinks, (q.shape[1],))
    check_scalars(call, scale, softcap)
    if dropout is not None:
        check_dropout(name, dropout)
    check_mask(name, mask, shape)


def check_mha(name: str, x: Any, context: Any, layer: Any) -> None:
    """x (B, Tq, C) and context (B, Tk, Cc) against the weights of the layer, which are (out, in)."""
    call = Call(name)
    Hq, Hkv = layer.num_heads, layer.kv_heads
    call.head_counts(Hq, Hkv)
    kind = call.floats(x=x, context=context)
    call.rank("x", x, "(B, T, C)")
    call.rank("context", context, "(B, T, C)")
    call.shape(context.shape[0] == x.shape[0], "context", f"batch {x.shape[0]} as in x", context.shape[0])
    for part, width in (("q", x.shape[2]), ("k", context.shape[2]), ("v", context.shape[2]), ("o", None)):
        w, b = getattr(layer, f"w_{part}"), getattr(layer, f"b_{part}")
        check_linear_weights(call, f"w_{part}", w, width, f"b_{part}", b, kind)
    for argument, w, heads in (("w_q", layer.w_q, Hq), ("w_k", layer.w_k, Hkv), ("w_v", layer.w_v, Hkv)):
        call.shape(w.shape[0] % heads == 0, argument, f"rows in {heads} equal blocks", w.shape[0])
    D, Dv = layer.w_q.shape[0] // Hq, layer.w_v.shape[0] // Hkv
    call.shape(layer.w_k.shape[0] == Hkv * D, "w_k", f"{Hkv} x {D} rows as in w_q", layer.w_k.shape[0])
    call.shape(layer.w_o.shape[1] == Hq * Dv, "w_o", f"{Hq} x {Dv} columns as in w_v", layer.w_o.shape[1])


def check_linear_weights(
    call: Call, w_name: str, w: Any, width: int | None, b_name: str, b: Any, kind: str
) -> None:
    """w (out, in) with in = width, where that is known, and b (out,) or None."""
    call.dtype(w_name, w, kind)
    call.rank(w_name, w, "(out, in)")
    if width is not None:
        call.shape(w.shape[1] == width, w_name, f"{width} columns", w.shape[1])
    if b is not None:
        call.dtype(b_name, b, kind)
        call.has_shape(b_name, b, (w.shape[0],))


def check_mha_extras(name: str, x: Any, context: Any, layer: Any, *, positions: Any, head_mask: Any) -> None:
    """What mha has beside attention: norms of queries and keys, rotation, pruned heads. After check_mha."""
    call = Call(name)
    D = layer.w_q.shape[0] // layer.num_heads
    for argument, weight in (("q_norm", layer.q_norm), ("k_norm", layer.k_norm)):
        if weight is not None:
            call.dtype(argument, weight, dtype_name(x))
            call.has_shape(argument, weight, (D,))
    call.not_negative("qk_norm_eps", layer.qk_norm_eps)
    if head_mask is not None:
        call.dtype("head_mask", head_mask, "bool")
        call.has_shape("head_mask", head_mask, (layer.num_heads,))
    if layer.rope is None:
        call.config(positions is None, "positions", "None without rope", "positions")
    else:
        call.config(context is None, "context", "None with rope", "a context")
        B, T, _ = x.shape
        check_rope(name, layer.rope, (B, layer.num_heads, T, D), dtype_name(x), positions=positions)


def check_packed(name: str, w_qkv: Any, b_qkv: Any, num_heads: Any, num_kv_heads: Any, packing: Any) -> None:
    """w_qkv ((Hq + 2·Hkv)·D, C) and b_qkv, before they are cut apart."""
    call = Call(name)
    call.head_counts(num_heads, num_kv_heads)
    call.one_of("packing", packing, ("blocks", "heads"))
    call.dtype("w_qkv", w_qkv, *FLOATS)
    check_linear_weights(call, "w_qkv", w_qkv, None, "b_qkv", b_qkv, dtype_name(w_qkv))
    blocks = num_heads + 2 * num_kv_heads
    call.shape(w_qkv.shape[0] % blocks == 0, "w_qkv", f"rows in {blocks} equal blocks", w_qkv.shape[0])
