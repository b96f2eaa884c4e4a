"""Keys quantised by channel, in groups of consecutive slots: a group when it is full, the last slots in f32 until then.

Source: Liu et al., "KIVI: a tuning-free asymmetric 2bit quantization for KV cache", 2024.
"""

from dataclasses import replace

import numpy as np

from .cache_checks import CONFIG, need
from .cache_state import Sizes, Slot, Stored
from .quantise import Codes, Format, pack, quantise_in_groups


def regroup(sizes: Sizes, row: list[Slot], slot: int) -> list[Slot]:
    """The row after what stands from `slot` on has changed: all of that group and the later ones is cut anew."""
    return quantise_full(sizes, loosen(sizes, row, slot))


def loosen(sizes: Sizes, row: list[Slot], slot: int) -> list[Slot]:
    """The keys of this slot's group and of all later ones as values, in f32."""
    if sizes.key_groups is None:
        return row
    start = slot - slot % sizes.key_groups
    return row[:start] + [_with_key(s, restore(s.parts["k"])) for s in row[start:]]


def quantise_full(sizes: Sizes, row: list[Slot]) -> list[Slot]:
    """Every group that is full and not yet quantised."""
    n, form = sizes.key_groups, sizes.form
    if n is None or form is None:
        return row
    row = list(row)
    for start in range(0, len(row) - n + 1, n):
        group = row[start : start + n]
        if group[0].parts["k"].codes is None:
            keys = quantise_group(tuple(slot.parts["k"] for slot in group), form)
            row[start : start + n] = [_with_key(s, k) for s, k in zip(group, keys, strict=True)]
    return row


def restore(key: Stored) -> Stored:
    """What the codes stand for, without them."""
    return key if key.codes is None else Stored(key.value, key)


def quantise_group(keys: tuple[Stored, ...], form: Format) -> list[Stored]:
    """n keys (H, D): each channel of each head by itself, as a token is quantised otherwise."""
    block = np.stack([key.value for key in keys], axis=-1).astype(np.float32)  # (H, D, n)
    H, D, n = block.shape
    with np.errstate(over="ignore", invalid="ignore"):
        need(bool(np.isfinite(block).all()), CONFIG)
        if form.zero_point:
            need(bool(np.isfinite(block.max(axis=-1) - block.min(axis=-1)).all()), CONFIG)
    whole = Format(form.name, None, form.zero_point)
    codes, scale, zero, value = quantise_in_groups(block.reshape(H * D, n), whole)
    scale, zero = scale.reshape(H, D), zero.reshape(H, D)
    zero = zero if form.zero_point else zero[:, :0]
    stored = []
    for place, key in enumerate(keys):
        packed = pack(codes[:, place].reshape(H, D), form)
        restored = value[:, place].reshape(H, D)
        one = Codes(packed, scale, zero, restored)
        stored.append(Stored(restored.astype(np.float64), key, None, one, (keys, place)))
    return stored


def _with_key(slot: Slot, key: Stored) -> Slot:
    return replace(slot, parts=slot.parts | {"k": key})
