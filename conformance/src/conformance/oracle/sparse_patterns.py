"""The sparse patterns as predicates over one pair (i, j), word for word as docs/semantics.md lists them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..tensors import Tensors
from .philox import philox_stream

Predicate = Callable[[int, int], bool]


def sparse_mask(config: dict[str, Any], inputs: Tensors) -> np.ndarray:
    """bool (Tq, Tk): the predicate asked of every pair."""
    Tq, Tk = inputs["q"].shape[2], inputs["k"].shape[2]
    sees = predicate(config["pattern"], inputs.get("block_mask"), Tq, Tk)
    mask = np.zeros((Tq, Tk), bool)
    for i, j in np.ndindex(Tq, Tk):
        mask[i, j] = sees(i, j) and (j <= i or not config.get("causal"))
    return mask


def predicate(pattern: dict[str, Any], block_mask: np.ndarray | None, Tq: int, Tk: int) -> Predicate:
    """Whether query i sees key j."""
    kind = pattern["type"]
    if kind == "blocks":
        assert block_mask is not None
        block = int(pattern["block"])
        return lambda i, j: bool(block_mask[i // block, j // block])
    if kind == "bigbird":
        return _bigbird(pattern, Tq, Tk)
    return {"window": _window, "dilated": _dilated, "strided": _strided, "fixed": _fixed, "global": _global}[
        kind
    ](pattern)


def _window(pattern: dict[str, Any]) -> Predicate:
    return lambda i, j: -pattern["left"] <= j - i <= pattern["right"]


def _dilated(pattern: dict[str, Any]) -> Predicate:
    d = pattern["dilation"]
    return lambda i, j: (j - i) % d == 0 and -pattern["left"] * d <= j - i <= pattern["right"] * d


def _strided(pattern: dict[str, Any]) -> Predicate:
    stride = pattern["stride"]
    return lambda i, j: j <= i and (i - j < stride or (i - j) % stride == 0)


def _fixed(pattern: dict[str, Any]) -> Predicate:
    stride, summary = pattern["stride"], pattern["summary"]
    return lambda i, j: j <= i and (i // stride == j // stride or j % stride >= stride - summary)


def _global(pattern: dict[str, Any]) -> Predicate:
    near, tokens = _window(pattern), set(pattern["tokens"])
    return lambda i, j: near(i, j) or i in tokens or j in tokens


def _bigbird(pattern: dict[str, Any], Tq: int, Tk: int) -> Predicate:
    block = int(pattern["block"])
    blocks_q, blocks_k = -(-Tq // block), -(-Tk // block)
    seen: set[tuple[int, int]] = set()
    for a in range(blocks_q):
        row = {
            c
            for c in range(blocks_k)
            if abs(a - c) <= pattern["window"] or a < pattern["global"] or c < pattern["global"]
        }
        drawn = _random_blocks(
            [c for c in range(blocks_k) if c not in row], a, pattern["random"], pattern["seed"]
        )
        seen |= {(a, c) for c in (*row, *drawn)}
    return lambda i, j: (i // block, j // block) in seen


def _random_blocks(hidden: list[int], a: int, count: int, seed: int) -> list[int]:
    """Draws without replacement: word a · count + n of the seed takes the n-th one, while there are any."""
    drawn = []
    for n in range(min(count, len(hidden))):
        word = next(philox_stream(int(seed), a * int(count) + n, 1))
        drawn.append(hidden.pop(word * len(hidden) >> 32))
    return drawn
