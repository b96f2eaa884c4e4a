"""The kinds of caches beside the contiguous one, and the steps that are not append, attend, truncate and reset."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ..errors import CapacityExceeded
from .attention import check_sdpa
from .cache import check_attend
from .call import LARGEST_SEED, Call, dtype_name, is_integer
from .positions import check_rope

LARGEST_POSITION = LARGEST_SEED
FORMATS = ("f16", "bf16", "int8", "int4", "fp8_e4m3")
WHOLE_FORMATS = ("int8", "int4")


class Outline(NamedTuple):
    """Shape and type of an array that is not there yet."""

    shape: tuple[int, ...]
    dtype: Any


def check_cache_rope(name: str, cache: Any) -> None:
    """A rotation that does not depend on the length of a text, since keys that are held are never turned anew."""
    call = Call(name)
    if cache.rope_at is not None:
        call.config(cache.rope is not None, "rope_at", "None without rope", cache.rope_at)
        call.one_of("rope_at", cache.rope_at, ("append", "attend"))
    if cache.rope is not None:
        shape = (cache.batch, cache.num_kv_heads, 0, cache.head_dim)
        check_rope(name, cache.rope, shape, dtype_name(cache))
        call.config(cache.rope.offset == 0, "offset", "0 in a cache", cache.rope.offset)
        length = getattr(cache.rope.scaling, "length", 1)
        call.config(length is not None, "length", "a length for this scaling in a cache", length)


def check_padding(name: str, padding: Any) -> None:
    """The side where tokens do not count."""
    Call(name).one_of("padding", padding, ("right", "left"))


def check_attend_held(
    name: str,
    q: Any,
    cache: Any,
    length: int,
    *,
    mask: Any,
    bias: Any = None,
    scale: Any = None,
    softcap: Any = None,
) -> None:
    """Queries and options against slots of this length, which need not be there yet."""
    check_attend(name, q, mask)
    Call(name).dtype("q", q, dtype_name(cache))
    positions = getattr(mask, "kv_positions", None)  # which the tensors' mask does not have
    Call(name).config(positions is None, "kv_positions", "None in a cache", "an array")
    heads, D, Dv = cache.sizes
    k, v = (Outline((cache.batch, heads, length, n), cache.dtype) for n in (D, Dv))
    check_sdpa(name, q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=None)


def check_reorder(name: str, index: Sequence[int], batch: int) -> None:
    """For each row, the one that takes its place."""
    call = Call(name)
    call.shape(len(index) == batch, "index", f"{batch} rows", len(index))
    good = all(is_integer(b) and 0 <= b < batch for b in index)
    call.config(good, "index", f"integers from 0 to {batch - 1}", list(index))


def check_evict(name: str, positions: Sequence[int]) -> None:
    """Integers; whether any row holds them does not matter."""
    good = all(is_integer(j) for j in positions)
    Call(name).config(good, "positions", "integers", list(positions))


def check_shift(name: str, by: Any, start: Any, held: Sequence[Any], following: Any) -> None:
    """That every row stays in order, its next position behind all, and within 0 and what JSON holds exactly."""
    call = Call(name)
    call.integer("by", by)
    call.integer("from", start)
    for row, after in zip(held, following.tolist(), strict=True):
        old = [*row.tolist(), after]
        new = [j + by if j >= start else j for j in old[:-1]]
        new += [after + by if after > start else after]
        good = new[0] >= 0 and new[-1] <= LARGEST_POSITION
        good &= all(a < b for a, b in pairwise(new))
        call.config(good, "by", f"a shift that keeps positions {old} in order and >= 0", by)


def check_rotating(name: str, cache: Any) -> None:
    """The window, and how many first tokens stay."""
    call = Call(name)
    call.integer("window", cache.window, 1)
    call.integer("keep", cache.keep, 0)


def check_rollback(name: str, lengths: Sequence[int], rows: Sequence[Any], cache: Any) -> None:
    """That what a query could see then is still held. rows: the positions that each row holds."""
    call = Call(name)
    for b, (n, held) in enumerate(zip(lengths, rows, strict=True)):
        first = max(cache.keep, n - cache.window + 1)
        missing = max(0, n - first) - sum(first <= j < n for j in held.tolist())
        expected = f"a length of row {b} whose window is still held"
        call.config(missing == 0, "lengths", expected, f"{n}, of whose window {missing} are forgotten")


def check_pages(name: str, needed: int, free: int) -> None:
    """Enough free pages for all that a call takes."""
    if needed > free:
        raise CapacityExceeded(f"{name}: expected at most {free} pages, which are free, got {needed}")


def check_tokens(name: str, tokens: Any, batch: int, length: int) -> None:
    """int64 (B, T)."""
    call = Call(name)
    call.dtype("tokens", tokens, "int64")
    call.has_shape("tokens", tokens, (batch, length))


def check_format(name: str, kind: Any, group: Any, zero_point: Any) -> None:
    """A format, a size of its groups or None, and a zero point only where codes are integers."""
    call = Call(name)
    call.one_of("format", kind, FORMATS)
    if group is not None:
        call.integer("group", group, 1)
    call.boolean("zero_point", zero_point)
    expected = f"False with {kind}"
    call.config(not zero_point or kind in WHOLE_FORMATS, "zero_point", expected, zero_point)


def check_key_groups(name: str, kind: Any, key_groups: Any) -> None:
    """How many tokens a group of keys has, in a format that is checked already."""
    call = Call(name)
    call.one_of("format", kind, WHOLE_FORMATS)
    call.integer("key_groups", key_groups, 1)


def check_latent_append(name: str, latent: Any, rope_key: Any, lengths: Any, cache: Any) -> None:
    """latent (B, T, R), rope_key (B, T, Dr), lengths int64 (B,) or None."""
    call = Call(name)
    call.dtype("latent", latent, dtype_name(cache))
    call.dtype("rope_key", rope_key, dtype_name(cache))
    call.rank("latent", latent, "(B, T, R)")
    call.rank("rope_key", rope_key, "(B, T, Dr)")
    new = latent.shape[1]
    call.has_shape("latent", latent, (cache.batch, new, cache.latent_dim))
    call.has_shape("rope_key", rope_key, (cache.batch, new, cache.rope_dim))
    if lengths is not None:
        call.counts("lengths", lengths, cache.batch, new)


def check_cross_attend(name: str, mask: Any) -> None:
    """The keys of another text stand in no order with the queries."""
    call = Call(name)
    call.config(mask.causal is False, "causal", "False in a cross cache", mask.causal)
    call.config(mask.window is None, "window", "None in a cross cache", mask.window)


def check_decode(name: str, x: Any, layer: Any, cache: Any, **options: Any) -> None:
    """That a cache takes the layer's keys and values, and its queries after that. After check_mha."""
    call = Call(name)
    B, T, _ = x.shape
    Hq, Hkv = layer.num_heads, layer.kv_heads
    D, Dv = layer.w_q.shape[0] // Hq, layer.w_v.shape[0] // Hkv
    call.dtype("x", x, dtype_name(cache))
    fits = (cache.batch, *cache.sizes) == (B, Hkv, D, Dv)
    call.shape(fits, "cache", f"batch {B} and sizes {(Hkv, D, Dv)}", (cache.batch, *cache.sizes))
    call.config(cache.rope == layer.rope, "cache", f"rope {layer.rope} as in the layer", cache.rope)
    cache.check_attend(name, Outline((B, Hq, T, D), cache.dtype), cache.longest_after(T), **options)
