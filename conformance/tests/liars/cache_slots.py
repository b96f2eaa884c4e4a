"""Takes the `rows` modulo the length too, or an index of -1 for the `last` slot."""

import sys

import numpy as np
from honest import lie_with, module

cache_write = module("cache_write").cache_write


def all_modulo(cache, update, write_indices=None, *, circular=False):
    honest = cache_write(cache, update, write_indices, circular=circular)
    if not circular or cache.shape[-2] == 0:
        return honest
    output = cache.copy()
    starts = np.zeros(len(cache), np.int64) if write_indices is None else write_indices
    for b, start in enumerate(starts):
        places = (start + np.arange(update.shape[-2])) % cache.shape[-2]
        output[b % cache.shape[-2]][..., places, :] = update[b]
    return output


def last_slot(cache, update, write_indices=None, *, circular=False):
    if (
        write_indices is not None
        and write_indices.dtype == np.int64
        and write_indices.shape == cache.shape[:1]
    ):
        write_indices = np.where(write_indices < 0, cache.shape[-2] - update.shape[-2], write_indices)
    return cache_write(cache, update, write_indices, circular=circular)


lie_with(cache_write=all_modulo if sys.argv[1] == "rows" else last_slot)
