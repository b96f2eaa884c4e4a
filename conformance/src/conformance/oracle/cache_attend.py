"""What an attend over a cache amounts to: an sdpa whose mask says which slot each query sees, slot by slot."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..tensors import Tensors
from .cache_state import LATENT, ROTATING, Cache, Sizes, Slot, turned
from .sdpa import answer_sdpa


@dataclass(frozen=True, eq=False)
class Attend:
    """A step that attends: sdpa's config and inputs, whose q is rotated, and where these come from.

    rows: the slots held. q: as given. positions (B, Tq): of the queries.
    """

    step: dict[str, Any]
    config: dict[str, Any]
    inputs: Tensors
    rows: list[list[Slot]]
    q: np.ndarray
    positions: np.ndarray

    @cached_property
    def answer(self) -> Tensors:
        """What sdpa makes of it."""
        return answer_sdpa(self.config, self.inputs)

    @cached_property
    def given(self) -> np.ndarray:
        """(B, Hkv, L): the weights that each slot is given, by all queries of all heads that read its head."""
        weights = by_kv_head(self.answer["weights"], self.inputs["k"].shape[1])
        return np.asarray(weights.sum(axis=(2, 3)))


def by_kv_head(weights: np.ndarray, heads: int) -> np.ndarray:
    """(B, Hq, Tq, L) as (B, Hkv, G, Tq, L)."""
    B, Hq, Tq, L = weights.shape
    return weights.reshape(B, heads, Hq // heads, Tq, L)


def read_attend(sizes: Sizes, cache: Cache, step: dict[str, Any], inputs: Tensors, q: np.ndarray) -> Attend:
    """The step as sdpa, on what the cache holds now."""
    B, Hq, Tq, _ = q.shape
    named = step.get("q_offset")
    given = inputs[named] if isinstance(named, str) else np.full(B, 0 if named is None else int(named))
    offsets = given if named is not None else np.array(cache.next, np.int64) - Tq
    positions = np.asarray(offsets[:, None] + np.arange(Tq)[None, :])
    wide = q.astype(np.float64)
    if sizes.rope is not None:
        wide = wide.copy()
        for b, i in np.ndindex(B, Tq):
            wide[b, :, i] = turned(sizes.rope, wide[b, :, i], int(positions[b, i]))
    blocks = gather(sizes, cache.rows)
    if sizes.kind == LATENT:
        k = np.concatenate([blocks["latent"], blocks["rope_key"]], axis=-1)
        arguments = {"q": wide, "k": k, "v": blocks["latent"]}
    else:
        k = attended_keys(sizes, cache.rows) if sizes.rotates_late else blocks["k"]
        arguments = {"q": wide, "k": k, "v": blocks["v"]}
    L = arguments["k"].shape[2]
    shown = np.zeros((B, Hq, Tq, L), bool)
    for b, i in np.ndindex(B, Tq):
        for s, slot in enumerate(cache.rows[b]):
            shown[b, :, i, s] = sees(sizes, step, int(positions[b, i]), slot.position)
    if step.get("mask") is not None:
        shown &= np.broadcast_to(inputs[step["mask"]], shown.shape)
    arguments["mask"] = shown
    if step.get("bias") is not None:
        arguments["bias"] = inputs[step["bias"]].astype(np.float64)
    config = {name: step[name] for name in ("scale", "softcap") if step.get(name) is not None}
    return Attend(step, config, arguments, [list(row) for row in cache.rows], q, positions)


def sees(sizes: Sizes, step: dict[str, Any], p: int, j: int) -> bool:
    """Whether the query at position p sees the slot at position j, the mask aside."""
    if sizes.kind == ROTATING and not (j <= p and (p - j < sizes.window or j < sizes.keep)):
        return False
    left, right = step.get("window") or (None, None)
    if step.get("causal") and j > p:
        return False
    return (left is None or j >= p - left) and (right is None or j <= p + right)


def attended_keys(sizes: Sizes, rows: list[list[Slot]]) -> np.ndarray:
    """(B, Hkv, L, D): keys that are held as they came, each rotated at its position."""
    keys = gather(sizes, rows)["k"]
    for b, row in enumerate(rows):
        for s, slot in enumerate(row):
            keys[b, :, s] = turned(sizes.rope or {}, keys[b, :, s], slot.position)
    return keys


def gather(sizes: Sizes, rows: list[list[Slot]]) -> Tensors:
    """Each part as a block (B, H, L, n), zero beyond each row's length."""
    L = max((len(row) for row in rows), default=0)
    blocks = {}
    for name, (heads, n) in sizes.parts.items():
        block = np.zeros((len(rows), heads, L, n))
        for b, row in enumerate(rows):
            for s, slot in enumerate(row):
                block[b, :, s] = slot.parts[name].value
        blocks[name] = block
    return blocks
