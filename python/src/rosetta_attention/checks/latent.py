"""Multi-head latent attention."""

from typing import Any

from .attention import check_linear_weights, check_scalars
from .call import Call
from .positions import check_rope


def check_mla(name: str, x: Any, layer: Any, *, causal: Any, kv_lengths: Any, scale: Any) -> None:
    """x (B, T, C) against the weights of the layer, which are (out, in)."""
    call = Call(name)
    H = layer.num_heads
    call.integer("num_heads", H, 1)
    kind = call.floats(x=x, q_norm=layer.q_norm, kv_norm=layer.kv_norm)
    names = ("w_q", "w_dkv", "w_kr", "w_uk", "w_uv", "w_o")
    for argument in ("w_dq", *names) if layer.w_dq is not None else names:
        check_linear_weights(call, argument, getattr(layer, argument), None, "", None, kind)
    call.rank("x", x, "(B, T, C)")
    B, T, C = x.shape
    R, Dr = layer.w_dkv.shape[0], layer.w_kr.shape[0]
    if layer.w_dq is None:
        call.config(layer.q_norm is None, "q_norm", "None without w_dq", "an array")
        latent_q = C
    else:
        call.shape(layer.w_dq.shape[1] == C, "w_dq", f"{C} columns", layer.w_dq.shape[1])
        latent_q = layer.w_dq.shape[0]
    for argument, width in (("w_q", latent_q), ("w_dkv", C), ("w_kr", C), ("w_uk", R), ("w_uv", R)):
        w = getattr(layer, argument)
        call.shape(w.shape[1] == width, argument, f"{width} columns", w.shape[1])
    for argument in ("w_q", "w_uk", "w_uv"):
        rows = getattr(layer, argument).shape[0]
        call.shape(rows % H == 0, argument, f"rows in {H} equal blocks", rows)
    Dn, Dv = layer.w_uk.shape[0] // H, layer.w_uv.shape[0] // H
    call.shape(layer.w_q.shape[0] == H * (Dn + Dr), "w_q", f"{H} x ({Dn} + {Dr}) rows", layer.w_q.shape[0])
    call.shape(layer.w_o.shape[1] == H * Dv, "w_o", f"{H} x {Dv} columns as in w_uv", layer.w_o.shape[1])
    if layer.q_norm is not None:
        call.has_shape("q_norm", layer.q_norm, (latent_q,))
    if layer.kv_norm is not None:
        call.has_shape("kv_norm", layer.kv_norm, (R,))
        call.shape(R >= 1, "w_dkv", "at least one row beside kv_norm", R)
    call.not_negative("eps", layer.eps)
    check_rope(name, layer.rope, (B, 1, T, Dr), kind)
    call.boolean("causal", causal)
    check_scalars(call, scale)
    if kv_lengths is not None:
        call.counts("kv_lengths", kv_lengths, B, T)
