"""Linear attention and its gated kin."""

from typing import Any

from .attention import check_scalars
from .call import Call

GATED = {"linear": (), "gated": ("decay",), "delta": ("beta",), "gated_delta": ("decay", "beta")}


def check_linear(name: str, q: Any, k: Any, v: Any, *, causal: Any, state: Any) -> None:
    """q (B, Hq, Tq, D), k (B, Hkv, Tk, D), v (B, Hkv, Tk, Dv), state (B, Hkv, D, Dv) with norm (B, Hkv, D)."""
    call = Call(name)
    past, norm = (None, None) if state is None else state
    call.floats(q=q, k=k, v=v, state=past, norm=norm)
    call.qkv(q, k, v)
    B, Hkv, Tk, D = k.shape
    if state is not None:
        call.has_shape("state", past, (B, Hkv, D, v.shape[3]))
        call.has_shape("norm", norm, (B, Hkv, D))
    call.boolean("causal", causal)
    call.shape(not causal or q.shape[2] == Tk, "k", f"length {q.shape[2]} as in q when causal", Tk)


def check_gated_linear(
    name: str, q: Any, k: Any, v: Any, *, rule: Any, state: Any, decay: Any, beta: Any, scale: Any
) -> None:
    """q (B, Hq, T, D), k (B, Hkv, T, D), v (B, Hkv, T, Dv), and what the rule takes."""
    call = Call(name)
    call.one_of("rule", rule, tuple(GATED))
    for argument, x in (("decay", decay), ("beta", beta)):
        due = argument in GATED[rule]
        expected = f"an array for the rule {rule}" if due else f"None for the rule {rule}"
        call.config((x is not None) == due, argument, expected, "None" if x is None else "an array")
    call.floats(q=q, k=k, v=v, state=state, decay=decay, beta=beta)
    call.qkv(q, k, v)
    B, Hkv, T, D = k.shape
    call.shape(q.shape[2] == T, "k", f"length {q.shape[2]} as in q", T)
    if state is not None:
        call.has_shape("state", state, (B, Hkv, D, v.shape[3]))
    if decay is not None:
        call.shape(
            decay.shape in ((B, Hkv, T, D), (B, Hkv, T, 1)), "decay", f"{(B, Hkv, T, D)} or 1", decay.shape
        )
    if beta is not None:
        call.shape(beta.shape in ((B, Hkv, T, 1), (B, 1, T, 1)), "beta", f"{(B, Hkv, T, 1)} or 1", beta.shape)
    check_scalars(call, scale)
