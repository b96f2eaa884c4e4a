"""The KV cache, and the plain write into one."""

import math
from collections.abc import Sequence
from typing import Any

from ..errors import CapacityExceeded
from .call import FLOATS, Call, dtype_name, is_integer


def check_cache(name: str, cache: Any) -> None:
    """The sizes that a cache is made with: integers, at least 1 where nothing could be computed with 0."""
    check_sizes(name, cache, batch=0, num_kv_heads=1, head_dim=1, value_dim=0)
    check_capacity(name, cache.capacity)
    rows = (cache.batch, cache.num_kv_heads, cache.capacity or 0)
    check_numbers(name, "capacity", *rows, max(cache.head_dim, cache.value_dim))


def check_numbers(name: str, argument: str, *sizes: int) -> None:
    """Not more numbers than a float64 can count; a size of 0 counts as 1."""
    count = math.prod(max(n, 1) for n in sizes)
    Call(name).config(count <= 2**53, argument, "a cache of at most 2^53 numbers", count)


def check_sizes(name: str, cache: Any, **least: int) -> None:
    """The type of a cache, and the integers that it is made with, each with the least that it may be."""
    call = Call(name)
    call.dtype("dtype", cache, *FLOATS)
    for argument, smallest in least.items():
        call.integer(argument, getattr(cache, argument), smallest)
        check_numbers(name, "capacity", getattr(cache, argument))


def check_capacity(name: str, capacity: Any) -> None:
    """None, or how many slots a row may hold."""
    good = capacity is None or (is_integer(capacity) and capacity >= 0)
    Call(name).config(good, "capacity", "None or an integer >= 0", capacity)


def check_append(name: str, k: Any, v: Any, lengths: Any, cache: Any) -> None:
    """k (B, Hkv, T, D), v (B, Hkv, T, Dv), lengths int64 (B,) or None."""
    call = Call(name)
    call.dtype("k", k, dtype_name(cache))
    call.dtype("v", v, dtype_name(cache))
    call.rank("k", k, "(B, H, T, D)")
    call.rank("v", v, "(B, H, T, D)")
    new = k.shape[2]
    call.has_shape("k", k, (cache.batch, cache.num_kv_heads, new, cache.head_dim))
    call.has_shape("v", v, (cache.batch, cache.num_kv_heads, new, cache.value_dim))
    if lengths is not None:
        call.counts("lengths", lengths, cache.batch, new)


def check_room(name: str, needed: int, capacity: int | None) -> None:
    """Room for the longest row after an append."""
    if capacity is not None and needed > capacity:
        raise CapacityExceeded(f"{name}: k: expected at most {capacity} positions in a row, got {needed}")


def check_attend(name: str, q: Any, mask: Any) -> None:
    """What the cache needs before it can align the queries; sdpa checks the rest."""
    call = Call(name)
    call.dtype("q", q, *FLOATS)
    call.rank("q", q, "(B, H, T, D)")
    call.config(mask.kv_lengths is None, "kv_lengths", "None, since the cache has its own", mask.kv_lengths)


def check_truncate(name: str, lengths: Sequence[int], held: Sequence[int]) -> None:
    """One integer a row, from 0 to what the row holds."""
    call = Call(name)
    call.shape(len(lengths) == len(held), "lengths", f"{len(held)} values", len(lengths))
    good = all(is_integer(n) and 0 <= n <= most for n, most in zip(lengths, held, strict=True))
    call.config(good, "lengths", f"integers from 0 to the lengths held, {list(held)}", list(lengths))


def check_cache_write(name: str, cache: Any, update: Any, write_indices: Any, circular: Any) -> None:
    """cache (B, ..., L, n), update (B, ..., T, n), write_indices int64 (B,) or None; and the room."""
    call = Call(name)
    call.floats(cache=cache, update=update)
    if write_indices is not None:
        call.dtype("write_indices", write_indices, "int64")
    rank = len(cache.shape)
    call.shape(rank >= 3, "cache", "at least rank 3 (B, ..., L, n)", f"rank {rank}")
    call.shape(len(update.shape) == rank, "update", f"rank {rank} as cache", f"rank {len(update.shape)}")
    B, L, T = cache.shape[0], cache.shape[-2], update.shape[-2]
    call.has_shape("update", update, (*cache.shape[:-2], T, cache.shape[-1]))
    call.boolean("circular", circular)
    starts = [0] * B
    if write_indices is not None:
        call.has_shape("write_indices", write_indices, (B,))
        starts = write_indices.tolist()
        call.config(all(n >= 0 for n in starts), "write_indices", "values >= 0", starts)
    needed = T if circular else max((start + T for start in starts), default=T)
    if needed > L:
        raise CapacityExceeded(f"{name}: update: expected to end within {L} positions, got {needed}")
