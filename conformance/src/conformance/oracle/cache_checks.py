"""Which code a step of a cache script must give, for what can be said from its fields and tensors alone."""

from dataclasses import replace
from typing import Any

import numpy as np

from ..tensors import Tensors
from .cache_state import CROSS, LATENT, PAGED, Cache, Sizes
from .quantise import Format

FLOATS = ("float16", "float32", "float64", "bfloat16")
OK, REQUEST, CONFIG = "ok", "invalid_request", "invalid_config"
SHAPE, DTYPE, CAPACITY = "shape_mismatch", "dtype_mismatch", "capacity_exceeded"


class Refused(Exception):
    """A step that fails, with its code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def need(condition: bool, code: str) -> None:
    """Raises Refused unless it holds."""
    if not condition:
        raise Refused(code)


def tensor(inputs: Tensors, step: dict[str, Any], name: str) -> np.ndarray:
    """The tensor that a field of the step names."""
    need(isinstance(step.get(name), str) and step[name] in inputs, REQUEST)
    return inputs[step[name]]


def whole(x: Any) -> int:
    """An integer, perhaps written as 2.0."""
    need(isinstance(x, int | float) and not isinstance(x, bool) and float(x).is_integer(), CONFIG)
    return int(x)


def check_append(sizes: Sizes, cache: Cache, step: dict[str, Any], inputs: Tensors) -> list[slice]:
    """Which of the T positions count in each row."""
    need(not (sizes.kind == CROSS and cache.written), CONFIG)
    given = {name: tensor(inputs, step, name) for name in sizes.parts}
    counts: set[int] = set()
    for name, (heads, n) in sizes.parts.items():
        shape = given[name].shape
        if sizes.kind == LATENT:
            need(len(shape) == 3 and (shape[0], shape[2]) == (sizes.batch, n), SHAPE)
        else:
            need(len(shape) == 4 and (shape[0], shape[1], shape[3]) == (sizes.batch, heads, n), SHAPE)
        counts.add(shape[-2])
    need(len(counts) == 1, SHAPE)
    T = counts.pop()
    dtype = cache.dtype or next(iter(given.values())).dtype
    need(dtype.name in FLOATS and all(x.dtype == dtype for x in given.values()), DTYPE)
    need(step.get("padding") in (None, "right", "left"), CONFIG)
    lengths = [T] * sizes.batch
    if step.get("lengths") is not None:
        named = tensor(inputs, step, "lengths")
        need(named.dtype == np.int64, DTYPE)
        need(named.shape == (sizes.batch,), SHAPE)
        lengths = [int(n) for n in named]
        need(all(0 <= n <= T for n in lengths), CONFIG)
    if step.get("tokens") is not None:
        need(sizes.kind == PAGED, CONFIG)
        tokens = tensor(inputs, step, "tokens")
        need(tokens.dtype == np.int64, DTYPE)
        need(tokens.shape == (sizes.batch, T), SHAPE)
    left = step.get("padding") == "left"
    counted = [slice(T - n, T) if left else slice(0, n) for n in lengths]
    if sizes.capacity is not None:
        need(
            all(len(row) + n <= sizes.capacity for row, n in zip(cache.rows, lengths, strict=True)), CAPACITY
        )
    if sizes.form is not None and sizes.form.scaled:
        for name, x in given.items():
            # The range of a group of tokens is known only when the group is full.
            grouped = name == "k" and sizes.key_groups is not None
            form = replace(sizes.form, zero_point=False) if grouped else sizes.form
            need(all(has_scale(x[b, :, part], form) for b, part in enumerate(counted)), CONFIG)
    return counted


def check_attend(sizes: Sizes, cache: Cache, step: dict[str, Any], inputs: Tensors) -> np.ndarray:
    """The queries (B, Hq, Tq, n)."""
    q = tensor(inputs, step, "q")
    heads = next(iter(sizes.parts.values()))[0]
    n = sum(width for _, width in sizes.parts.values()) if sizes.kind == LATENT else sizes.parts["k"][1]
    need(q.ndim == 4 and (q.shape[0], q.shape[3]) == (sizes.batch, n) and q.shape[1] % heads == 0, SHAPE)
    need(q.dtype.name in FLOATS and q.dtype == (cache.dtype or q.dtype), DTYPE)
    if sizes.kind == CROSS:
        need(not step.get("causal") and step.get("window") is None, CONFIG)
    slots = max((len(row) for row in cache.rows), default=0)
    for name, kinds in (("mask", "b"), ("bias", "fV")):
        if step.get(name) is not None:
            given = tensor(inputs, step, name)
            need(given.dtype.kind in kinds and (name == "mask" or given.dtype == q.dtype), DTYPE)
            need(broadcasts(given.shape, (*q.shape[:3], slots)), SHAPE)
    if step.get("softcap") is not None:
        need(step["softcap"] > 0 and np.isfinite(step["softcap"]), CONFIG)
    for side in step.get("window") or ():
        need(side is None or side >= 0, CONFIG)
    offset = step.get("q_offset")
    if isinstance(offset, str):
        named = tensor(inputs, step, "q_offset")
        need(named.dtype == np.int64, DTYPE)
        need(named.shape == (sizes.batch,), SHAPE)
    elif offset is not None:
        whole(offset)
    return q


def check_index(sizes: Sizes, step: dict[str, Any]) -> list[int]:
    """The old row of each new one."""
    need(isinstance(step.get("index"), list), REQUEST)
    index = [whole(b) for b in step["index"]]
    batch = sizes.batch // sizes.split
    need(len(index) == batch, SHAPE)
    need(all(0 <= b < batch for b in index), CONFIG)
    return index


def check_truncate(cache: Cache, sizes: Sizes, step: dict[str, Any]) -> list[int]:
    """How much each row keeps: slots, in a rotating cache positions."""
    need(isinstance(step.get("lengths"), list), CONFIG)
    lengths = [whole(n) for n in step["lengths"]]
    need(len(lengths) == sizes.batch, SHAPE)
    for b, n in enumerate(lengths):
        if sizes.window:
            need(0 <= n <= cache.next[b], CONFIG)
            held = {slot.position for slot in cache.rows[b]}
            needed = range(max(sizes.keep, n - sizes.window + 1), n)
            need(all(j in held for j in needed), CONFIG)
        else:
            need(0 <= n <= len(cache.rows[b]), CONFIG)
    return lengths


def has_scale(x: np.ndarray, form: Format) -> bool:
    """Whether all of x (H, T, n) is finite in float32, and so is the range of each group."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = x.astype(np.float32)
        groups = (
            [narrow[..., part] for part in form.groups(x.shape[-1])] if form.zero_point and x.size else []
        )
        ranges = [group.max(axis=-1) - group.min(axis=-1) for group in groups]
    return bool(np.isfinite(narrow).all() and all(np.isfinite(span).all() for span in ranges))


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of this shape may stand for one of the target's."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False
