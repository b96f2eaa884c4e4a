"""What a call must satisfy, tested once at the edge; the algorithms behind it trust their arguments.

These checks look only at `.shape`, `.dtype` and scalars, so NumPy arrays and torch tensors share them. Types
come before shapes, shapes before values. Every message names the function, the argument, what was expected
and what came.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from .errors import AttentionError, CapacityExceeded, DtypeMismatch, InvalidConfig, ShapeMismatch

FLOATS = ("float32", "float64")


def check_softmax(x: Any, sink: Any) -> None:
    """x (..., n), sink broadcastable to (...) or None."""
    call = _Call("softmax")
    call.dtype("x", x, *FLOATS)
    call.shape(len(x.shape) >= 1, "x", "at least one axis", "rank 0")
    if sink is not None:
        call.dtype("sink", sink, dtype_name(x))
        call.broadcasts("sink", sink, tuple(x.shape[:-1]))


def check_mask(name: str, mask: Any, shape: tuple[int, int, int, int]) -> None:
    """Against the shape (B, Hq, Tq, Tk) that the mask is asked for."""
    call = _Call(name)
    batch, _, _, kv_len = shape
    if mask.keep is not None:
        call.dtype("mask", mask.keep, "bool")
        call.broadcasts("mask", mask.keep, shape)
    call.config(dtype_name(mask.causal) == "bool", "causal", "True or False", mask.causal)
    if mask.window is not None:
        pair = isinstance(mask.window, Sequence) and len(mask.window) == 2
        call.config(pair, "window", "a pair (left, right)", mask.window)
        for side in mask.window:
            good = side is None or (_is_integer(side) and side >= 0)
            call.config(good, "window", "None or an integer >= 0 on each side", mask.window)
    if mask.kv_lengths is not None:
        _check_counts(call, "kv_lengths", mask.kv_lengths, batch, kv_len)
    if mask.q_offset is not None and not _is_integer(mask.q_offset):
        call.config(hasattr(mask.q_offset, "dtype"), "q_offset", "an integer or int64 (B,)", mask.q_offset)
        call.dtype("q_offset", mask.q_offset, "int64")
        call.has_shape("q_offset", mask.q_offset, (batch,))


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
) -> None:
    """q (B, Hq, Tq, D), k (B, Hkv, Tk, D), v (B, Hkv, Tk, Dv) and everything that goes with them."""
    call = _Call(name)
    call.dtype("q", q, *FLOATS)
    for argument, x in (("k", k), ("v", v), ("bias", bias), ("sinks", sinks)):
        if x is not None:
            call.dtype(argument, x, dtype_name(q))
    for argument, x in (("q", q), ("k", k), ("v", v)):
        call.rank(argument, x, "(B, H, T, D)")
    B, Hq, Tq, D = q.shape
    _, Hkv, Tk, _ = k.shape
    call.shape(D >= 1, "q", "a head size of at least 1", D)
    call.shape(k.shape[0] == B, "k", f"batch {B} as in q", k.shape[0])
    call.shape(v.shape[0] == B, "v", f"batch {B} as in q", v.shape[0])
    call.shape(k.shape[3] == D, "k", f"head size {D} as in q", k.shape[3])
    call.shape(v.shape[1] == Hkv, "v", f"{Hkv} heads as in k", v.shape[1])
    call.shape(v.shape[2] == Tk, "v", f"length {Tk} as in k", v.shape[2])
    divides = Hq == 0 if Hkv == 0 else Hq % Hkv == 0
    call.shape(divides, "q", f"a multiple of the {Hkv} key/value heads", f"{Hq} heads")
    if bias is not None:
        call.broadcasts("bias", bias, (B, Hq, Tq, Tk))
    if sinks is not None:
        call.has_shape("sinks", sinks, (Hq,))
    if scale is not None:
        call.config(_is_number(scale), "scale", "a finite number", scale)
    if softcap is not None:
        call.config(_is_number(softcap) and softcap > 0, "softcap", "a finite number > 0", softcap)
    check_mask(name, mask, (B, Hq, Tq, Tk))


def check_mha(name: str, x: Any, context: Any, layer: Any) -> None:
    """x (B, Tq, C) and context (B, Tk, Cc) against the weights of the layer, which are (out, in)."""
    call = _Call(name)
    Hq, Hkv = layer.num_heads, layer.kv_heads
    call.config(_is_integer(Hq) and Hq >= 1, "num_heads", "an integer >= 1", Hq)
    divides = _is_integer(Hkv) and Hkv >= 1 and Hq % Hkv == 0
    call.config(divides, "num_kv_heads", f"an integer >= 1 that divides num_heads = {Hq}", Hkv)
    call.dtype("x", x, *FLOATS)
    call.dtype("context", context, dtype_name(x))
    call.rank("x", x, "(B, T, C)")
    call.rank("context", context, "(B, T, C)")
    call.shape(context.shape[0] == x.shape[0], "context", f"batch {x.shape[0]} as in x", context.shape[0])
    for part, width in (("q", x.shape[2]), ("k", context.shape[2]), ("v", context.shape[2]), ("o", None)):
        w, b = getattr(layer, f"w_{part}"), getattr(layer, f"b_{part}")
        call.dtype(f"w_{part}", w, dtype_name(x))
        call.rank(f"w_{part}", w, "(out, in)")
        if width is not None:
            call.shape(w.shape[1] == width, f"w_{part}", f"{width} columns", w.shape[1])
        if b is not None:
            call.dtype(f"b_{part}", b, dtype_name(x))
            call.has_shape(f"b_{part}", b, (w.shape[0],))
    for argument, w, heads in (("w_q", layer.w_q, Hq), ("w_k", layer.w_k, Hkv), ("w_v", layer.w_v, Hkv)):
        call.shape(w.shape[0] % heads == 0, argument, f"rows in {heads} equal blocks", w.shape[0])
    D, Dv = layer.w_q.shape[0] // Hq, layer.w_v.shape[0] // Hkv
    call.shape(layer.w_k.shape[0] == Hkv * D, "w_k", f"{Hkv} x {D} rows as in w_q", layer.w_k.shape[0])
    call.shape(layer.w_o.shape[1] == Hq * Dv, "w_o", f"{Hq} x {Dv} columns as in w_v", layer.w_o.shape[1])


def check_cache(name: str, cache: Any) -> None:
    """The sizes that a cache is made with: integers, at least 1 where nothing could be computed with 0."""
    call = _Call(name)
    call.dtype("dtype", cache, *FLOATS)
    for argument, least in (("batch", 0), ("num_kv_heads", 1), ("head_dim", 1), ("value_dim", 0)):
        size = getattr(cache, argument)
        call.config(_is_integer(size) and size >= least, argument, f"an integer >= {least}", size)
    if cache.capacity is not None:
        good = _is_integer(cache.capacity) and cache.capacity >= 0
        call.config(good, "capacity", "None or an integer >= 0", cache.capacity)


def check_append(name: str, k: Any, v: Any, lengths: Any, cache: Any) -> None:
    """k (B, Hkv, T, D), v (B, Hkv, T, Dv), lengths int64 (B,) or None."""
    call = _Call(name)
    call.dtype("k", k, dtype_name(cache))
    call.dtype("v", v, dtype_name(cache))
    call.rank("k", k, "(B, H, T, D)")
    call.rank("v", v, "(B, H, T, D)")
    new = k.shape[2]
    call.has_shape("k", k, (cache.batch, cache.num_kv_heads, new, cache.head_dim))
    call.has_shape("v", v, (cache.batch, cache.num_kv_heads, new, cache.value_dim))
    if lengths is not None:
        _check_counts(call, "lengths", lengths, cache.batch, new)


def check_room(name: str, needed: int, capacity: int | None) -> None:
    """Room for the longest row after an append."""
    if capacity is not None and needed > capacity:
        raise CapacityExceeded(f"{name}: k: expected at most {capacity} positions in a row, got {needed}")


def check_attend(name: str, q: Any, mask: Any) -> None:
    """What the cache needs before it can align the queries; sdpa checks the rest."""
    call = _Call(name)
    call.dtype("q", q, *FLOATS)
    call.rank("q", q, "(B, H, T, D)")
    call.config(mask.kv_lengths is None, "kv_lengths", "None, since the cache has its own", mask.kv_lengths)


def check_truncate(name: str, lengths: Sequence[int], held: Sequence[int]) -> None:
    """One integer a row, from 0 to what the row holds."""
    call = _Call(name)
    call.shape(len(lengths) == len(held), "lengths", f"{len(held)} values", len(lengths))
    good = all(_is_integer(n) and 0 <= n <= most for n, most in zip(lengths, held, strict=True))
    call.config(good, "lengths", f"integers from 0 to the lengths held, {list(held)}", list(lengths))


def dtype_name(x: Any) -> str:
    """`float32`, whether `x` is an array, a tensor or a cache; for anything else the name of its type."""
    return str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch.")


@dataclass(frozen=True)
class _Call:
    """The function whose arguments are checked. Each method raises unless the argument is good."""

    name: str

    def shape(self, good: bool, argument: str, expected: object, got: object) -> None:
        self._require(good, ShapeMismatch, argument, expected, got)

    def config(self, good: bool, argument: str, expected: object, got: object) -> None:
        self._require(good, InvalidConfig, argument, expected, got)

    def dtype(self, argument: str, x: Any, *kinds: str) -> None:
        self._require(dtype_name(x) in kinds, DtypeMismatch, argument, " or ".join(kinds), dtype_name(x))

    def rank(self, argument: str, x: Any, letters: str) -> None:
        expected = letters.count(",") + 1
        self.shape(len(x.shape) == expected, argument, f"rank {expected} {letters}", f"rank {len(x.shape)}")

    def has_shape(self, argument: str, x: Any, shape: tuple[int, ...]) -> None:
        self.shape(tuple(x.shape) == shape, argument, f"shape {shape}", tuple(x.shape))

    def broadcasts(self, argument: str, x: Any, target: tuple[int, ...]) -> None:
        """Right-aligned: every axis is the target's or 1."""
        axes = zip(reversed(x.shape), reversed(target), strict=False)
        fits = len(x.shape) <= len(target) and all(n in (1, t) for n, t in axes)
        self.shape(fits, argument, f"a shape that broadcasts to {target}", tuple(x.shape))

    def _require(
        self, good: bool, error: type[AttentionError], argument: str, expected: object, got: object
    ) -> None:
        if not good:
            raise error(f"{self.name}: {argument}: expected {expected}, got {got}")


def _check_counts(call: _Call, argument: str, counts: Any, batch: int, limit: int) -> None:
    """int64 (B,), each 0 <= n <= limit."""
    call.dtype(argument, counts, "int64")
    call.has_shape(argument, counts, (batch,))
    values = counts.tolist()
    call.config(all(0 <= n <= limit for n in values), argument, f"values from 0 to {limit}", values)


def _is_integer(x: Any) -> bool:
    return not isinstance(x, bool) and isinstance(x, Integral)


def _is_number(x: Any) -> bool:
    """A finite real number."""
    return not isinstance(x, bool) and isinstance(x, Real) and math.isfinite(x)
