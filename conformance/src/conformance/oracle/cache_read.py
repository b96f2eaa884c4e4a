"""What `read` and `stats` write."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tensors import Tensors
from .cache_attend import gather
from .cache_pages import count_pages
from .cache_state import LATENT, PAGED, ROTATING, Cache, Sizes, Slot, World
from .per_head import join_heads, join_rows


@dataclass(frozen=True, eq=False)
class Written:
    """A step that writes what needs no arithmetic. rows: the slots that a read gives; None for stats."""

    step: dict[str, Any]
    tensors: Tensors
    rows: list[list[Slot]] | None


def read(sizes: Sizes, cache: Cache, step: dict[str, Any]) -> Written:
    """The step `read`."""
    rows = [list(row) for row in cache.rows]
    if sizes.kind == ROTATING:
        rows = [
            [s for s in row if s.position < sizes.keep or s.position > after - sizes.window]
            for row, after in zip(rows, cache.next, strict=True)
        ]
    blocks = gather(sizes, rows)
    if sizes.form is not None and cache.dtype is not None:  # what a half cannot hold is rounded once
        with np.errstate(over="ignore", invalid="ignore"):
            exact = [name for name in blocks if name != "k" or not sizes.rotates]
            blocks |= {name: blocks[name].astype(cache.dtype).astype(np.float64) for name in exact}
    if sizes.kind == LATENT:
        blocks = {name: x[:, 0] for name, x in blocks.items()}
    tensors = {name: join_heads(sizes, x) for name, x in blocks.items()}
    tensors["lengths"] = join_rows(sizes, np.array([len(row) for row in rows], np.int64))
    if step.get("positions"):
        positions = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int64)
        for b, row in enumerate(rows):
            positions[b, : len(row)] = [slot.position for slot in row]
        tensors["positions"] = join_rows(sizes, positions)
    if step.get("tracked"):
        tensors["tracked"] = join_heads(sizes, read_tracked(sizes, rows))
    if step.get("codes"):
        tensors |= read_codes(sizes, rows)
    return Written(step, {f"{step['out']}.{name}": x for name, x in tensors.items()}, rows)


def read_tracked(sizes: Sizes, rows: list[list[Slot]]) -> np.ndarray:
    """(B, Hkv, L): the weights that each slot was given, zero beyond each row's length."""
    tracked = np.zeros((len(rows), sizes.parts["k"][0], max(map(len, rows), default=0)))
    for b, row in enumerate(rows):
        for s, slot in enumerate(row):
            tracked[b, :, s] = slot.tracked()
    return tracked


def read_codes(sizes: Sizes, rows: list[list[Slot]]) -> Tensors:
    """Codes, scales and zeros of every part, zero beyond each row's length."""
    form = sizes.form
    assert form is not None
    L = max((len(row) for row in rows), default=0)
    tensors: Tensors = {}
    for name, (heads, n) in sizes.parts.items():
        groups = len(form.groups(n))
        forms = {"codes": (form.codes_width(n), form.codes_dtype())}
        forms |= {"scale": (groups, np.dtype(np.float32))} if form.scaled else {}
        forms |= {"zero": (groups, np.dtype(np.float32))} if form.zero_point else {}
        if name == "k" and sizes.key_groups is not None:
            tensors |= read_key_groups(sizes, rows, sizes.key_groups)
            forms = {"codes": forms["codes"]}
        for field, (width, dtype) in forms.items():
            block = np.zeros((len(rows), heads, L, width), dtype)
            for b, row in enumerate(rows):
                for s, slot in enumerate(row):
                    codes = slot.parts[name].codes
                    if codes is not None:  # else it waits for its group
                        block[b, :, s] = getattr(codes, field)
            tensors[f"{name}_{field}"] = block
    return tensors


def read_key_groups(sizes: Sizes, rows: list[list[Slot]], n: int) -> Tensors:
    """k_scale and k_zero (B, Hkv, groups, D) of the full groups, and k_tail (B, Hkv, tail, D) of what waits in f32."""
    heads, D = sizes.parts["k"]
    groups = max((len(row) // n for row in rows), default=0)
    waiting = max((len(row) % n for row in rows), default=0)
    scale, zero = (np.zeros((len(rows), heads, groups, D), np.float32) for _ in range(2))
    tail = np.zeros((len(rows), heads, waiting, D), np.float32)
    for b, row in enumerate(rows):
        for g in range(len(row) // n):
            codes = row[g * n].parts["k"].codes
            assert codes is not None
            scale[b, :, g] = codes.scale
            if codes.zero.size:
                zero[b, :, g] = codes.zero
        for s, slot in enumerate(row[len(row) - len(row) % n :]):
            tail[b, :, s] = slot.parts["k"].value
    tensors = {"k_scale": scale, "k_tail": tail}
    return tensors | ({"k_zero": zero} if sizes.form is not None and sizes.form.zero_point else {})


def stats(world: World, sizes: Sizes, cache: Cache, step: dict[str, Any]) -> Written:
    """The step `stats`."""
    slots = [len(row) for row in cache.rows]
    tensors = {"positions": join_rows(sizes, np.array(slots, np.int64))}
    dtype = cache.dtype
    if dtype is None and sizes.kind == PAGED:  # the pages are those of all forks, whoever had the first keys
        dtype = next((other.dtype for other in world.caches.values() if other.dtype is not None), None)
    itemsize = 0 if dtype is None else dtype.itemsize
    held = sum(row_bytes(sizes, itemsize, n) for n in slots)
    if sizes.kind == PAGED:
        pages = count_pages(world, sizes)
        tensors["pages"] = np.array(pages, np.int64)
        held = row_bytes(sizes, itemsize, pages[0] * sizes.page_size)
    tensors["bytes"] = np.array([held], np.int64)
    return Written(step, {f"{step['out']}.{name}": x for name, x in tensors.items()}, None)


def row_bytes(sizes: Sizes, itemsize: int, slots: int) -> int:
    """What so many tokens of a row take, all heads and parts together."""
    total, form = 0, sizes.form
    for name, (heads, n) in sizes.parts.items():
        if form is None:
            total += slots * heads * n * itemsize
            continue
        scales = 4 * (form.scaled + form.zero_point)
        code = heads * form.codes_width(n) * form.codes_dtype().itemsize
        if name == "k" and sizes.key_groups is not None:
            groups, waiting = divmod(slots, sizes.key_groups)
            total += (slots - waiting) * code + groups * heads * n * scales + waiting * heads * n * 4
        else:
            total += slots * (code + heads * len(form.groups(n)) * scales)
    return total
