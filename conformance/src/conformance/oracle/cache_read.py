"""What `read` and `stats` write."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .cache_attend import gather
from .cache_pages import count_pages
from .cache_state import LATENT, PAGED, ROTATING, Cache, Sizes, Slot, World

Tensors = dict[str, np.ndarray]


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
            exact = [name for name in blocks if name != "k" or sizes.rope is None]
            blocks |= {name: blocks[name].astype(cache.dtype).astype(np.float64) for name in exact}
    if sizes.kind == LATENT:
        blocks = {name: x[:, 0] for name, x in blocks.items()}
    tensors = blocks | {"lengths": np.array([len(row) for row in rows], np.int64)}
    if step.get("positions"):
        positions = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int64)
        for b, row in enumerate(rows):
            positions[b, : len(row)] = [slot.position for slot in row]
        tensors["positions"] = positions
    if step.get("codes"):
        tensors |= read_codes(sizes, rows)
    return Written(step, {f"{step['out']}.{name}": x for name, x in tensors.items()}, rows)


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
        for field, (width, dtype) in forms.items():
            block = np.zeros((len(rows), heads, L, width), dtype)
            for b, row in enumerate(rows):
                for s, slot in enumerate(row):
                    block[b, :, s] = getattr(slot.parts[name].codes, field)
            tensors[f"{name}_{field}"] = block
    return tensors


def stats(world: World, sizes: Sizes, cache: Cache, step: dict[str, Any]) -> Written:
    """The step `stats`."""
    slots = [len(row) for row in cache.rows]
    count, tensors = sum(slots), {"positions": np.array(slots, np.int64)}
    itemsize = 0 if cache.dtype is None else cache.dtype.itemsize
    if sizes.kind == PAGED:
        pages = count_pages(world, sizes)
        tensors["pages"] = np.array(pages, np.int64)
        count = pages[0] * sizes.page_size
    tensors["bytes"] = np.array([count * slot_bytes(sizes, itemsize)], np.int64)
    return Written(step, {f"{step['out']}.{name}": x for name, x in tensors.items()}, None)


def slot_bytes(sizes: Sizes, itemsize: int) -> int:
    """What a token takes, all heads and parts together."""
    total, form = 0, sizes.form
    for heads, n in sizes.parts.values():
        if form is None:
            total += heads * n * itemsize
            continue
        total += heads * form.codes_width(n) * form.codes_dtype().itemsize
        total += heads * len(form.groups(n)) * 4 * (form.scaled + form.zero_point)
    return total
