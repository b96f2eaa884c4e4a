"""The suite `kv_cache`: paged caches, whose rows and forks share one pool."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .cache_script import ONE, CacheScript, paged
from .draft import Draft

NAN = np.nan
ALL = ("f32", "f64", "f16", "bf16")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _lengths()
    yield from _copies()
    yield from _exhausted()
    yield from _rows()


def _by_hand() -> Iterator[Draft]:
    fork = paged("paged/by-hand/fork", 4, 6, **ONE).append_values(1, 2).fork("b")
    fork.append_values(10).append_values(20).on("b").attend_uniform().attend_uniform(cache="b").stats()
    yield fork.draft("a half-full page shared: 13/3 and 23/3", "ByHand", "CopyOnWrite", dtypes=ALL)
    reuse = (
        paged("paged/by-hand/reuse", 2, 1, **ONE).append_values(7, 7).stats().reset().stats().append_values(3)
    )
    yield (
        reuse.attend_uniform()
        .read()
        .stats()
        .draft("the only page, given back and taken again: 3, not 10 or 5", "ByHand", "PageReuse")
    )
    padding = paged("paged/by-hand/padding", 2, 3, batch=2, Hq=1, Hkv=1, D=1, Dv=1)
    for rows, lengths in (
        ([[1, 2, 4, 8], [32, 64, NAN, NAN]], [4, 2]),
        ([[NAN, NAN], [NAN, NAN]], [0, 0]),
    ):
        v = np.array(rows, float)[:, None, :, None]
        padding.append(v.shape[2], lengths, k=np.ones(v.shape), v=v).attend_uniform()
    yield (
        padding.read()
        .stats()
        .draft(
            "three full pages, padding is written nowhere: 15/4, 48", "ByHand", "PadSlot", "RowIndependence"
        )
    )
    dropped = (
        paged("paged/by-hand/drop", 2, 4, **ONE).append_values(1, 2, 4).fork("b").append_values(8).on("b")
    )
    dropped.drop("b").append_values(16).attend_uniform().read().stats()
    yield dropped.draft("the fork goes, the origin stays whole: 23/4", "ByHand", "PageCount", "CopyOnWrite")


def _lengths() -> Iterator[Draft]:
    for size in (1, 3, 4):
        for length in sorted({0, 1, size - 1, size, size + 1, 2 * size, 2 * size + 1}):
            script = paged(f"paged/page-{size}/length-{length}", size, 20).append(length).attend(1).stats()
            yield (
                script.append(1)
                .attend(1)
                .read(positions=True)
                .stats()
                .draft("the last page empty, partly full, full", "PageCount")
            )
    for splits in ((13,), (1, 12), (5, 8), (4, 4, 5), (1,) * 13):
        script = paged(
            f"paged/chunks/{'-'.join(map(str, splits)) if len(splits) < 13 else 'one-by-one'}", 4, 9
        )
        draw = Draw("kv_cache/paged/chunks")
        k, v, q = draw.normal(2, 2, 13, 3), draw.normal(2, 2, 13, 5), draw.normal(2, 4, 13, 3)
        start = 0
        for count in splits:
            now = slice(start, start + count)
            script.append(count, k=k[:, :, now], v=v[:, :, now]).attend(count, q=q[:, :, now], causal=True)
            start += count
        yield script.read().stats().draft("one prefill, cut across the pages", "ChunkedPrefill")
    large = paged("paged/large", 16, 30, batch=2, Hq=8, Hkv=2, D=64, Dv=64).append(200).attend(1)
    yield large.append(5).attend(5, causal=True).draft("a past of 200 on pages of 16", "VectorTail")


def _copies() -> Iterator[Draft]:
    yield (
        paged("paged/fork/full-pages", 2, 12)
        .append(4)
        .fork("b")
        .stats()
        .append(2)
        .stats()
        .append(1)
        .on("b")
        .stats()
        .attend(2, causal=True)
        .attend(2, causal=True, cache="b")
        .read()
        .read(cache="b")
        .draft("full pages stay shared", "CopyOnWrite", "PageCount")
    )
    chain = paged("paged/fork/chain", 4, 14).append(3).fork("b").fork("c", cache="b").stats()
    chain.append(1).on("b").stats().append(2).on("c").stats().append(1).stats()
    for name in ("main", "b", "c"):
        chain.attend(1, cache=name).read(cache=name)
    yield chain.draft("a fork of a fork: the last holder writes in place", "CopyOnWrite", "PageCount")
    origin = paged("paged/fork/origin-dropped", 4, 6).append(3).fork("b").drop("main").stats(cache="b")
    yield (
        origin.append(2)
        .on("b")
        .attend(2, causal=True, cache="b")
        .read(cache="b")
        .stats(cache="b")
        .draft("the fork outlives its origin", "PageCount")
    )
    cut = paged("paged/fork/truncated", 4, 8).append(6).fork("b").truncate(3, 5).on("b").stats()
    yield (
        cut.append(1)
        .on("b")
        .stats()
        .read(cache="b")
        .read()
        .attend(2, causal=True)
        .draft("a fork cut inside a shared page writes to a copy", "CopyOnWrite", "Rollback")
    )
    beams = (
        paged("paged/reorder/repeats", 4, 9, batch=3).append(6, [6, 3, 1]).reorder(1, 1, 0).stats().attend(1)
    )
    yield (
        beams.append(1)
        .stats()
        .attend(1)
        .read()
        .reorder(2, 0, 0)
        .append(2)
        .read()
        .stats()
        .draft("a row taken twice shares its pages until it is written", "BeamReorder", "CopyOnWrite")
    )
    yield (
        paged("paged/reorder/in-one-append", 4, 3)
        .append(2)
        .reorder(0, 0)
        .stats()
        .append(1)
        .read()
        .stats()
        .draft("two rows on one page, both written: one copy is enough", "CopyOnWrite", "PageCount")
    )
    early = paged("paged/fork/untyped", 2, 6).fork("b").load("never-saved", code="invalid_request").append(5)
    yield (
        early.append(1, code="capacity_exceeded")
        .on("b")
        .stats(cache="b")
        .draft("one pool for all forks, whatever the type comes to be", "CacheAliasing", "Capacity")
    )
    twice = paged("paged/fork/again", 2, 8).append(3).fork("b").drop("b").fork("b").append(1).on("b")
    yield (
        twice.fork("b", code="invalid_config")
        .read(cache="b")
        .read()
        .stats()
        .draft("a name that is free again", "CacheAliasing", "ErrorCode")
    )


def _exhausted() -> Iterator[Draft]:
    whole = paged("paged/exhausted/append", 2, 4).append(3).append(3, code="capacity_exceeded").stats().read()
    yield (
        whole.append(1)
        .append(1, code="capacity_exceeded")
        .attend(1)
        .read()
        .stats()
        .draft("an append that needs too many pages is refused whole", "Capacity", "NothingChanged")
    )
    copy = paged("paged/exhausted/copy", 4, 2).append(3).fork("b").append(1, code="capacity_exceeded").on("b")
    yield (
        copy.read(cache="b")
        .append(1, code="capacity_exceeded")
        .stats()
        .drop("b")
        .append(1)
        .read()
        .stats()
        .draft("the copy needs a free page as well", "Capacity", "CopyOnWrite", "NothingChanged")
    )
    rows = paged("paged/exhausted/rows", 2, 3).append(4, [4, 2]).append(2, [1, 0], code="capacity_exceeded")
    yield (
        rows.truncate(2, 2)
        .append(2, [0, 2])
        .read()
        .stats()
        .draft("a page that one row gives back serves another", "Capacity", "PageReuse", "RowIndependence")
    )
    none = (
        paged("paged/exhausted/no-pages", 2, 0)
        .append(1, code="capacity_exceeded")
        .append(0)
        .attend(1)
        .stats()
    )
    yield none.read().draft("a pool of nothing", "Capacity", "EmptyKeys")
    junk = paged("paged/exhausted/junk", 2, 3).append(8, [4, 1]).stats().read()
    yield junk.draft("junk beyond the lengths needs no page", "Capacity", "PadSlot")


def _rows() -> Iterator[Draft]:
    yield (
        paged("paged/ragged", 3, 12, batch=3)
        .append(5, [5, 0, 2])
        .attend(2, causal=True)
        .append(4, [1, 4, 0], padding="left")
        .attend(3, causal=True)
        .truncate(2, 4, 1)
        .append(2)
        .attend(2, causal=True)
        .read(positions=True)
        .stats()
        .draft(
            "rows of their own lengths, cut and filled again", "RowIndependence", "LeftPadding", "Rollback"
        )
    )
    options = (
        paged("paged/options", 4, 6).append(7).attend(2, mask=Draw("kv_cache/paged/mask").choice(0.6, 2, 7))
    )
    yield (
        options.attend(3, causal=True, window=[2, None], softcap=0.8)
        .attend(2, q_offset=3, causal=True, scale=0.2)
        .draft("options of sdpa", "MaskComposition", "SoftcapOrder")
    )
    yield (
        paged("paged/rope", 4, 8, D=4, rope={"base": 100.0})
        .append(5)
        .attend(3, causal=True)
        .fork("b")
        .append(2)
        .on("b")
        .attend(2, causal=True, cache="b")
        .append(2)
        .attend(2, causal=True)
        .read()
        .draft("keys turned when they are appended, once", "RopePosition", "CopyOnWrite")
    )
    yield (
        paged("paged/no-rows", 4, 2, batch=0).append(3).attend(2).read().stats().draft("no rows", "EmptyKeys")
    )
    half = paged("paged/half", 4, 6).append(5).fork("b").append(1).on("b").attend(2, causal=True, cache="b")
    yield half.read(cache="b").stats().draft("halves", "HalfInside", "CopyOnWrite", dtypes=("f16", "bf16"))


class Prompts(CacheScript):
    """Appends whose keys and values follow from the tokens and their places, as a model's would."""

    def prompt(self, *rows: list[int], salt: int = 0, unknown: bool = False, **options: Any) -> "Prompts":
        """A row of tokens each; shorter ones are padded."""
        T = max(map(len, rows))
        tokens = np.array([row + [0] * (T - len(row)) for row in rows], np.int64)
        base = (tokens % 16)[:, None, :, None] + salt
        k = base / 8 + np.arange(self.Hkv * self.D).reshape(1, self.Hkv, 1, self.D)
        v = base / 4 - np.arange(self.Hkv * self.Dv).reshape(1, self.Hkv, 1, self.Dv)
        named: dict[str, Any] = {} if unknown else {"tokens": tokens}
        self.append(T, [len(row) for row in rows], k=k, v=v, **named, **options)
        return self


def prompts(name: str, page_size: int = 2, num_pages: int = 20, batch: int = 2) -> Prompts:
    """A paged cache for tests of prefix sharing."""
    return Prompts(name, {"kind": "paged", "page_size": page_size, "num_pages": num_pages}, batch=batch)
