"""Sparse patterns, and attention over them."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from .attention import check_scalars
from .call import Call, is_integer

# The least value of each size that a pattern may have.
LEAST = {"left": 0, "right": 0, "window": 0, "global_blocks": 0, "random": 0, "summary": 0}
LEAST |= {"dilation": 1, "stride": 1, "block": 1}


def check_pattern(name: str, pattern: Any, q_len: Any, kv_len: Any, causal: Any) -> None:
    """Every number of the pattern, and a table of blocks against the lengths."""
    call = Call(name)
    known = is_dataclass(pattern) and hasattr(pattern, "shows")
    call.config(known, "pattern", "one of the patterns", pattern)
    values = {field.name: getattr(pattern, field.name) for field in fields(pattern)}
    mask = values.get("mask")
    if mask is not None:
        call.dtype("block_mask", mask, "bool")
        call.rank("block_mask", mask, "(query blocks, key blocks)")
    for field, value in values.items():
        if field in LEAST:
            call.integer(field, value, LEAST[field])
    if "summary" in values:
        good = values["summary"] <= values["stride"]
        call.config(good, "summary", f"at most stride = {values['stride']}", values["summary"])
    if "tokens" in values:
        tokens = values["tokens"]
        good = isinstance(tokens, Sequence) and all(is_integer(t) and t >= 0 for t in tokens)
        call.config(good, "tokens", "a list of integers >= 0", tokens)
    if "seed" in values:
        call.seed("seed", values["seed"])
    if mask is not None:
        block = values["block"]
        call.has_shape("block_mask", mask, (-(-q_len // block), -(-kv_len // block)))
    call.boolean("causal", causal)


def check_sparse(name: str, q: Any, k: Any, v: Any, pattern: Any, *, scale: Any, causal: Any) -> None:
    """q (B, Hq, Tq, D), k (B, Hkv, Tk, D), v (B, Hkv, Tk, Dv)."""
    call = Call(name)
    call.floats(q=q, k=k, v=v)
    call.qkv(q, k, v)
    check_scalars(call, scale)
    check_pattern(name, pattern, q.shape[2], k.shape[2], causal)
