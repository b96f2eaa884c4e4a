"""Attention of other kinds: score functions, merging, packed sequences, structured self-attention."""

from typing import Any

from .attention import check_q_offset, check_scalars, check_window
from .call import FLOATS, Call, dtype_name

FORMS = {"additive": ("w_q", "w_k", "w_v"), "dot": (), "general": ("w",), "scaled": ()}


def check_scoring(
    name: str, form: Any, q: Any, k: Any, v: Any, *, w_q: Any, w_k: Any, w_v: Any, w: Any, kv_lengths: Any
) -> None:
    """q (B, Tq, Dq), k (B, Tk, Dk), v (B, Tk, Dv), and the weights of the form."""
    call = Call(name)
    call.one_of("form", form, tuple(FORMS))
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w": w}
    for argument, x in weights.items():
        due = argument in FORMS[form]
        expected = f"an array for the form {form}" if due else f"None for the form {form}"
        call.config((x is not None) == due, argument, expected, "None" if x is None else "an array")
    call.floats(q=q, k=k, v=v, **weights)
    for argument, x in (("q", q), ("k", k), ("v", v)):
        call.rank(argument, x, "(B, T, D)")
    (B, _, Dq), (_, Tk, Dk) = q.shape, k.shape
    call.shape(Dq >= 1, "q", "a size of at least 1", Dq)
    call.shape(Dk >= 1, "k", "a size of at least 1", Dk)
    call.shape(k.shape[0] == B, "k", f"batch {B} as in q", k.shape[0])
    call.shape(v.shape[0] == B, "v", f"batch {B} as in q", v.shape[0])
    call.shape(v.shape[1] == Tk, "v", f"length {Tk} as in k", v.shape[1])
    if form in ("dot", "scaled"):
        call.shape(Dk == Dq, "k", f"size {Dq} as in q", Dk)
    elif form == "general":
        call.has_shape("w", w, (Dq, Dk))
    else:
        call.rank("w_v", w_v, "(A,)")
        call.has_shape("w_q", w_q, (w_v.shape[0], Dq))
        call.has_shape("w_k", w_k, (w_v.shape[0], Dk))
    if kv_lengths is not None:
        call.counts("kv_lengths", kv_lengths, B, Tk)


def check_merge(name: str, a_output: Any, a_lse: Any, b_output: Any, b_lse: Any) -> None:
    """a_output and b_output (..., Dv), a_lse and b_lse (...), which are f32 where the outputs are half."""
    call = Call(name)
    kind = call.floats(a_output=a_output, b_output=b_output)
    for argument, lse in (("a_lse", a_lse), ("b_lse", b_lse)):
        call.dtype(argument, lse, kind)
    call.shape(len(a_output.shape) >= 1, "a_output", "at least one axis", "rank 0")
    call.has_shape("b_output", b_output, tuple(a_output.shape))
    for argument, lse in (("a_lse", a_lse), ("b_lse", b_lse)):
        call.has_shape(argument, lse, tuple(a_output.shape[:-1]))


def check_varlen(
    name: str, q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, mask: Any, scale: Any, softcap: Any
) -> None:
    """q (Nq, Hq, D), k (Nk, Hkv, D), v (Nk, Hkv, Dv), cu_q and cu_k int64 (S + 1,)."""
    call = Call(name)
    call.floats(q=q, k=k, v=v)
    ends = (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k))
    for argument, cu in ends:
        call.dtype(argument, cu, "int64")
    for argument, x in (("q", q), ("k", k), ("v", v)):
        call.rank(argument, x, "(N, H, D)")
    for argument, cu in ends:
        call.rank(argument, cu, "(S + 1,)")
    (_, Hq, D), (Nk, Hkv, _) = q.shape, k.shape
    call.shape(D >= 1, "q", "a head size of at least 1", D)
    call.shape(k.shape[2] == D, "k", f"head size {D} as in q", k.shape[2])
    call.shape(v.shape[1] == Hkv, "v", f"{Hkv} heads as in k", v.shape[1])
    call.shape(v.shape[0] == Nk, "v", f"{Nk} rows as in k", v.shape[0])
    call.kv_groups(Hq, Hkv)
    sequences = cu_q.shape[0] - 1
    call.shape(sequences >= 0, "cu_seqlens_q", "at least one value", "none")
    call.has_shape("cu_seqlens_k", cu_k, (sequences + 1,))
    for (argument, cu), x in zip(ends, (q, k), strict=True):
        values, rows = cu.tolist(), x.shape[0]
        good = values[0] == 0 and values[-1] == rows and values == sorted(values)
        call.config(good, argument, f"values that rise from 0 to {rows}", values)
    call.boolean("causal", mask.causal)
    check_window(call, mask.window)
    check_q_offset(call, mask.q_offset, sequences)
    check_scalars(call, scale, softcap)


def check_structured(name: str, h: Any, w_1: Any, w_2: Any, *, kv_lengths: Any) -> None:
    """h (B, T, C), w_1 (A, C), w_2 (R, A)."""
    call = Call(name)
    call.dtype("h", h, *FLOATS)
    for argument, w in (("w_1", w_1), ("w_2", w_2)):
        call.dtype(argument, w, dtype_name(h))
    call.rank("h", h, "(B, T, C)")
    call.rank("w_1", w_1, "(A, C)")
    call.rank("w_2", w_2, "(R, A)")
    B, T, C = h.shape
    call.shape(w_1.shape[1] == C, "w_1", f"{C} columns", w_1.shape[1])
    call.shape(w_2.shape[1] == w_1.shape[0], "w_2", f"{w_1.shape[0]} columns", w_2.shape[1])
    if kv_lengths is not None:
        call.counts("kv_lengths", kv_lengths, B, T)
