"""A rotating cache that forgets one `early`, forgets `after` the chunk has come, or has no `sinks`; and a cache that
numbers tokens by the `slots` held, or turns keys `twice`, or from position `zero` in every append."""

import sys

import numpy as np
from honest import lie_with, module

RotatingCache = module("rotating_cache").RotatingCache
Slots = module("slots").Slots
honest_commit, honest_rotated = RotatingCache._commit, module("cache").rotated


def seen_too_late(self):
    held = self._slots.positions[:, : len(self)]
    return (held > self._slots.next[:, None] - self.window + 1) | (held < self.keep)


def commit_then_forget(self, entry):
    honest_commit(self, entry)
    self._slots.keep(self._seen_by_next() | (entry.counts == 0)[:, None])


def only_the_window(self):
    return self._slots.positions[:, : len(self)] > self._slots.next[:, None] - self.window


def advance_by_slots(self, counts):
    for b, count in enumerate(counts):
        start = self.lengths[b]
        self.positions[b, start : start + count] = start + np.arange(count)
    self.lengths = self.lengths + counts
    self.next = self.lengths.copy()


def rotated_twice(x, options, start):
    return honest_rotated(honest_rotated(x, options, start), options, start)


def rotated_from_zero(x, options, start):
    return honest_rotated(x, options, np.zeros_like(start))


lie = sys.argv[1]
if lie == "early":
    RotatingCache._seen_by_next = seen_too_late
elif lie == "after":
    RotatingCache._commit = commit_then_forget
elif lie == "sinks":
    RotatingCache._seen_by_next = only_the_window
elif lie == "slots":
    Slots.advance = advance_by_slots
else:
    KeyValueCache = module("cache").KeyValueCache
    honest_entry = KeyValueCache._entry

    def entry(self, *arguments):  # keys alone: queries are turned as they should be
        module("cache").rotated = rotated_twice if lie == "twice" else rotated_from_zero
        try:
            return honest_entry(self, *arguments)
        finally:
            module("cache").rotated = honest_rotated

    KeyValueCache._entry = entry
lie_with()
