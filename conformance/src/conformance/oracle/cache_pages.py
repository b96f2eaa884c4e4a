"""The pages of a pool, counted by looking at every table: no reference counts, no free list, no hashes."""

from collections import Counter

from .cache_state import Cache, Page, Sizes, Slot, World


def holders(world: World) -> Counter[Page]:
    """How many rows of all caches hold each page that is in use."""
    return Counter(page for cache in world.caches.values() for table in cache.tables for page in table)


def count_pages(world: World, sizes: Sizes) -> tuple[int, int, int]:
    """Used, shared, free."""
    held = holders(world)
    shared = sum(count > 1 for count in held.values())
    return len(held), shared, sizes.num_pages - len(held)


def take_pages(world: World, sizes: Sizes, cache: Cache, counts: list[int]) -> bool:
    """The pages that an append of so many slots a row needs; False, and nothing is taken, when too few are free.

    The last page of a row is written to when it is not full: a copy of it is written to when others hold it too.
    """
    held = holders(world)
    free = sizes.num_pages - len(held)
    tables, written = [], []
    for row, table, count in zip(cache.rows, cache.tables, counts, strict=True):
        taken = list(table)
        if count and len(row) % sizes.page_size:
            last = taken[-1]
            if held[last] > 1:
                held[last] -= 1
                taken[-1] = Page()
                free -= 1
            else:
                written.append(last)
        missing = pages_of(len(row) + count, sizes) - len(taken)
        taken += [Page() for _ in range(missing)]
        free -= missing
        tables.append(taken)
    if free < 0:
        return False
    cache.tables = tables
    for page in written:
        page.known = None
    return True


def cut_pages(sizes: Sizes, cache: Cache) -> None:
    """Pages that no slot of their row stands on any more go back."""
    cache.tables = [
        table[: pages_of(len(row), sizes)] for row, table in zip(cache.rows, cache.tables, strict=True)
    ]


def share_prefixes(world: World, sizes: Sizes, cache: Cache) -> None:
    """Full pages whose tokens are known from the row's start become one page where tokens and bits are equal."""
    for b, row in enumerate(cache.rows):
        for index in range(len(row) // sizes.page_size):
            key = page_key(row, index, sizes)
            if key is None:
                break
            page = cache.tables[b][index]
            older = [
                other
                for other in _alike(world, sizes, index, key)
                if other.known is not None and (page.known is None or other.known < page.known)
            ]
            if older:
                cache.tables[b][index] = min(older, key=lambda other: other.known or 0)
            elif page.known is None:
                world.clock += 1
                page.known = world.clock


def page_key(row: list[Slot], index: int, sizes: Sizes) -> tuple[tuple[int, ...], bytes] | None:
    """All tokens up to the page's end and the page's bits; None where a token is not known."""
    end = (index + 1) * sizes.page_size
    tokens = [slot.token for slot in row[:end]]
    known = tuple(token for token in tokens if token is not None)
    if len(known) < end:
        return None
    return known, b"".join(slot.bits() for slot in row[end - sizes.page_size : end])


def _alike(world: World, sizes: Sizes, index: int, key: tuple[tuple[int, ...], bytes]) -> list[Page]:
    """The pages of this key that some row holds whole."""
    return [
        cache.tables[b][index]
        for cache in world.caches.values()
        for b, row in enumerate(cache.rows)
        if len(row) >= (index + 1) * sizes.page_size and page_key(row, index, sizes) == key
    ]


def pages_of(slots: int, sizes: Sizes) -> int:
    """How many pages so many slots stand on."""
    return -(-slots // sizes.page_size)
