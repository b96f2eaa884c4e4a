"""A cache that quantises keys by `token` where groups of tokens were asked for, rounds the tail as soon as it comes
(`eager`), keeps the scale of a group that was cut (`stale`); or that turns keys by their `slot` when it attends."""

import sys
from dataclasses import replace

import numpy as np
from machine_port import serve

from conformance.oracle import cache_attend, key_groups, kv_cache
from conformance.oracle.cache_attend import gather
from conformance.oracle.cache_state import Stored, turned
from conformance.oracle.quantise import Codes, Format, quantise

honest_group, honest_full = key_groups.quantise_group, key_groups.quantise_full


def group_by_token(keys, form):
    stored = []
    for one, key in zip(honest_group(keys, form), keys, strict=True):
        own = quantise(key.value.astype(np.float32), Format(form.name, None, form.zero_point))
        scale, zero = (np.broadcast_to(x, key.value.shape) if x.size else x for x in (own.scale, own.zero))
        codes = Codes(own.codes, scale, zero, own.value)
        stored.append(replace(one, value=own.value.astype(np.float64), codes=codes))
    return stored


def full_and_tail(sizes, row):
    row = honest_full(sizes, row)
    if sizes.key_groups is None or sizes.form is None:
        return row
    start = len(row) - len(row) % sizes.key_groups
    tail = row[start:]
    if not tail:
        return row
    rounded = honest_group(tuple(slot.parts["k"] for slot in tail), sizes.form)
    keys = [Stored(key.value, key) for key in rounded]
    return row[:start] + [replace(s, parts=s.parts | {"k": k}) for s, k in zip(tail, keys, strict=True)]


def group_with_old_scale(keys, form):
    stored = honest_group(keys, form)
    old = keys[0].source
    if not isinstance(old, Stored) or old.codes is None or form.zero_point or form.name != "int8":
        return stored
    scale = old.codes.scale
    found = []
    for one, key in zip(stored, keys, strict=True):
        codes = np.clip(np.rint(key.value / np.where(scale == 0, 1, scale)), -127, 127)
        value = (codes * scale).astype(np.float64)
        found.append(
            replace(one, value=value, codes=replace(one.codes, codes=codes.astype(np.int8), scale=scale))
        )
    return found


def keys_by_slot(sizes, rows):
    keys = gather(sizes, rows)["k"]
    for b, row in enumerate(rows):
        for s in range(len(row)):
            keys[b, :, s] = turned(sizes.rope, keys[b, :, s], s)
    return keys


lie = sys.argv[1]
if lie == "token":
    key_groups.quantise_group = group_by_token
elif lie == "eager":
    kv_cache.quantise_full = full_and_tail
elif lie == "stale":
    key_groups.quantise_group = group_with_old_scale
elif lie == "slot":
    cache_attend.attended_keys = keys_by_slot
else:
    raise SystemExit(f"no such lie: {lie}")
serve()
