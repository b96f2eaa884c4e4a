"""Caches whose fork is the `same` cache, that reorder in `place`, take padding on the left for padding on the
`right`, keep what an append_attend has appended when it `fails`, load without `positions`, shift without turning
(`still`), or, latent ones, scale by the latent alone (`latent`)."""

import sys

import numpy as np
from honest import lie_with, module

Slots, SlotCache = module("slots").Slots, module("slot_cache").SlotCache
cache = module("cache")


def fork(self):
    return self


def reordered_in_place(self, index):
    for name in self.parts:
        for new, old in enumerate(index):
            self.parts[name][new] = self.parts[name][old]
    rows = np.array(index, np.int64)
    self.positions, self.lengths, self.next = self.positions[rows], self.lengths[rows], self.next[rows]
    return self


honest_counted = cache.counted


def counted_right(T, lengths, batch, padding):
    return honest_counted(T, lengths, batch, "right")


def append_attend(self, entry, q, options):
    self._commit(entry)
    return self.attend_steps(q, **options)


honest_restored = Slots.restored


def restored_from_zero(self, lengths, following, positions, parts):
    counted = np.where(positions < 0, -1, np.arange(positions.shape[1]))
    return honest_restored(self, lengths, lengths, counted, parts)


def sdpa_steps(q, k, v, **options):
    if options.get("scale") is None and k.shape[-1] != v.shape[-1]:
        options["scale"] = v.shape[-1] ** -0.5
    return honest_sdpa_steps(q, k, v, **options)


lie, honest_sdpa_steps = sys.argv[1], module("latent_cache").sdpa_steps
if lie == "same":
    SlotCache.fork = fork
elif lie == "place":
    Slots.reordered = reordered_in_place
elif lie == "right":
    cache.counted = counted_right
elif lie == "fails":
    cache.Cache._append_attend = append_attend
elif lie == "positions":
    Slots.restored = restored_from_zero
elif lie == "still":
    for name in ("kv_cache", "quantised_cache"):
        module(name).turned = lambda x, options, by: x
else:
    module("latent_cache").sdpa_steps = sdpa_steps
lie_with()
