"""A page pool that writes to a page which others `share`, never `free`s one, adds to what a page held (`adds`), writes
`padding` into the last place, or knows tokens by their low `byte`, or those of one `page` alone."""

import sys

import numpy as np
from honest import lie_with, module

PagePool = module("page_pool").PagePool
PagedCache = module("paged_cache").PagedCache
honest_commit, honest_share = PagedCache._commit, PagedCache._share_prefixes


def write_in_place(self, page):
    return page


def keep_it(self, page):
    self.references[page] = max(self.references[page] - 1, 1)


def add_to_it(self, entry):
    before = self.pool.k.copy(), self.pool.v.copy()
    honest_commit(self, entry)
    for held, old in zip((self.pool.k, self.pool.v), before, strict=True):
        held[...] = np.where((held != old) & (old != 0), held + old, held)


def write_padding(self, entry):
    honest_commit(self, entry)
    rows = [row for row in self._rows if row.length]
    if rows and (entry.counts == 0).any():
        page = rows[0].pages[-1]
        self.pool.v[page, :, -1] = 1000


def low_byte(self, tokens):
    honest_share(self, [[token % 256 for token in row] for row in tokens])


def twin_by_page(self, row, index):
    class Tail(list):
        """Equal where the last page is."""

        def __eq__(self, other):
            return list.__eq__(self[-size:], other[-size:])

    size, end = self.page_size, (index + 1) * self.page_size
    mine = row.pages[index]
    rows = [r for r in self._rows if len(r.tokens) >= end and Tail(r.tokens[:end]) == row.tokens[:end]]
    alike = [r.pages[index] for r in rows if r.pages[index] != mine]
    return next((page for page in sorted(alike) if page < mine and self._same_bits(page, mine)), None)


lie = sys.argv[1]
if lie == "share":
    PagePool.writable = write_in_place
elif lie == "free":
    PagePool.free = keep_it
elif lie == "adds":
    PagedCache._commit = add_to_it
elif lie == "padding":
    PagedCache._commit = write_padding
elif lie == "byte":
    PagedCache._share_prefixes = low_byte
else:
    PagePool.twin = twin_by_page
lie_with()
