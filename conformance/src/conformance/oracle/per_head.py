"""A cache of which every KV head holds slots of its own: on the machine a row for each head of each row."""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .cache_checks import SHAPE, broadcasts, need
from .cache_state import PER_HEAD, Cache, Sizes


def as_rows(sizes: Sizes, cache: Cache, step: dict[str, Any], inputs: Tensors) -> Tensors:
    """The tensors that the step names, cut into rows of one head; of other kinds as they are."""
    if sizes.kind != PER_HEAD:
        return inputs
    heads, B = sizes.split, outer_batch(sizes)
    rows = dict(inputs)
    named = {name: step[name] for name in step if isinstance(step[name], str) and step[name] in inputs}
    for field in ("k", "v", "q"):
        if field in named:
            x = inputs[named[field]]
            need(x.ndim == 4 and x.shape[0] == B and x.shape[1] % heads == 0, SHAPE)
            need(field == "q" or x.shape[1] == heads, SHAPE)
            rows[named[field]] = x.reshape(B * heads, x.shape[1] // heads, *x.shape[2:])
    for field in ("lengths", "q_offset"):
        if field in named:
            x = inputs[named[field]]
            need(x.shape == (B,), SHAPE)
            rows[named[field]] = np.repeat(x, heads)
    slots = max((len(row) for row in cache.rows), default=0)
    for field in ("mask", "bias"):
        if field in named and "q" in named:
            q = inputs[named["q"]]
            target = (B, q.shape[1], q.shape[2], slots)
            need(broadcasts(inputs[named[field]].shape, target), SHAPE)
            x = np.broadcast_to(inputs[named[field]], target)
            rows[named[field]] = x.reshape(B * heads, q.shape[1] // heads, *target[2:])
    return rows


def join_heads(sizes: Sizes, x: np.ndarray) -> np.ndarray:
    """(rows, heads of a row, …) of the machine as (B, heads, …); of other kinds as it is."""
    if sizes.kind != PER_HEAD:
        return x
    return x.reshape(outer_batch(sizes), sizes.split * x.shape[1], *x.shape[2:])


def join_rows(sizes: Sizes, x: np.ndarray) -> np.ndarray:
    """(rows, …) of the machine as (B, Hkv, …); of other kinds as it is."""
    return join_heads(sizes, x[:, None]) if sizes.kind == PER_HEAD else x


def outer_batch(sizes: Sizes) -> int:
    """The rows of the request."""
    return sizes.batch // sizes.split
