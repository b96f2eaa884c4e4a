"""The suite `kv_cache`: scripts of steps on the contiguous cache."""

from collections.abc import Iterator

import numpy as np

from ..inputs import Draw
from .draft import Draft
from .script import Script, tiny

NAN, INF = np.nan, np.inf


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _chunks()
    yield from _ragged()
    yield from _rollback()
    yield from _options()


def _by_hand() -> Iterator[Draft]:
    yield (
        tiny("by-hand/decode")
        .append_values(1)
        .attend_uniform()
        .append_values(2)
        .attend_uniform()
        .append_values(6)
        .attend_uniform()
        .draft("running means: 1, 1.5, 3", "ByHand", "StaleReset")
    )
    chunks = tiny("by-hand/second-chunk").append_values(1, 2, 4).attend_uniform(3, causal=True)
    yield (
        chunks.append_values(8, 16)
        .attend_uniform(2, causal=True)
        .draft("[1, 1.5, 7/3], then [3.75, 6.2]", "ChunkedPrefill")
    )
    rollback = (
        tiny("by-hand/rollback").append_values(1, 2, 4).append_values(100, 200).truncate(4).append_values(8)
    )
    yield rollback.attend_uniform().read().draft("draft of two, one kept, 8 after it: 23", "Rollback")
    stale = tiny("by-hand/stale-reset", capacity=4).append_values(7, 7, 7).reset().append_values(5)
    yield (
        stale.attend_uniform().read().draft("after a reset only 5 is there: 5, not 1.25 or 6.5", "StaleReset")
    )
    whole = tiny("by-hand/lse").append(2, k=np.log([1.0, 3]).reshape(1, 1, 2, 1), v=np.ones((1, 1, 2, 1)))
    yield whole.attend(1, q=np.ones((1, 1, 1, 1)), scale=1).draft(
        "scores 0 and ln 3: an lse of ln 4, 1.386294; in base 2 it is 2", "ByHand", "LseNatural"
    )
    square = Script("by-hand/layout", batch=2, Hq=2, Hkv=2, D=2, Dv=2)
    counted = np.arange(16.0).reshape(2, 2, 2, 2)
    square.append(2, k=counted / 16, v=counted).attend_uniform(2, causal=True).append(1).read()
    yield square.draft(
        "values 0, 1, 2, … in row-major order, all sizes equal: out begins 0, 1, then 1, 2",
        "ByHand",
        "AxisOrder",
    )
    zero = tiny("by-hand/empty").attend_uniform(2).read()
    yield zero.draft("an empty cache: output 0, lse -inf, nothing to read", "EmptyKeys", "FullyMaskedRow")
    window = tiny("by-hand/window")
    for value in (1, 2, 4, 8, 16, 32, 64):
        window.append_values(value).attend_uniform(causal=True, window=[2, None])
    yield window.draft(
        "a window of 3 keys, token by token: nothing is lost at length 3, one key at 4", "WindowBoundary"
    )


def _chunks() -> Iterator[Draft]:
    """The same 13 positions, split in different ways: the answers are the same."""
    for splits in ((13,), (1, 12), (12, 1), (5, 8), (4, 4, 5), (1, 1, 1, 10), (7, 0, 6), (1,) * 13):
        script = Script(f"chunks/{'-'.join(map(str, splits)) if len(splits) < 13 else 'one-by-one'}", batch=2)
        draw = Draw("kv_cache/chunks")
        k, v, q = draw.normal(2, 2, 13, 3), draw.normal(2, 2, 13, 5), draw.normal(2, 4, 13, 3)
        start = 0
        for count in splits:
            now = slice(start, start + count)
            script.append(count, k=k[:, :, now], v=v[:, :, now]).attend(count, q=q[:, :, now], causal=True)
            start += count
        yield script.read().draft("one causal prefill, cut into chunks", "ChunkedPrefill", "CausalAlignment")
    for length in (15, 16, 17, 33):
        script = (
            Script(f"length/{length}", batch=1, Hq=4, Hkv=2, D=8, Dv=6).append(length - 1).append(1).attend(1)
        )
        yield script.read().draft(f"decode at length {length}", "VectorTail", "GqaTile")
    yield (
        Script("decode/gqa", batch=3, Hq=8, Hkv=2, D=16, Dv=12)
        .append(20)
        .append(1)
        .attend(1)
        .append(1)
        .attend(1)
        .draft("eight query heads on two, decoded twice", "GqaTile")
    )
    yield (
        Script("decode/large", batch=2, Hq=8, Hkv=2, D=64, Dv=64)
        .append(300)
        .attend(1)
        .append(5)
        .attend(5, causal=True)
        .draft("a past of 300 and a chunk of 5", "VectorTail", "ChunkedPrefill")
    )


def _ragged() -> Iterator[Draft]:
    junk_k, junk_v = Draw("kv_cache/ragged").normal(2, 2, 4, 3), Draw("kv_cache/ragged/v").normal(2, 2, 4, 5)
    junk_k[0, :, 2:], junk_v[0, :, 2:] = NAN, INF
    ragged = Script("ragged/junk").append(4, [2, 4], k=junk_k, v=junk_v).attend(2, causal=True).read()
    yield (
        ragged.append(3, [3, 1])
        .attend(3, causal=True)
        .read()
        .draft("rows of 2 and 4, NaN beyond; then 5 and 5", "RowIndependence", "HiddenPoison")
    )
    yield (
        Script("ragged/zero-row", batch=3)
        .append(3, [0, 3, 1])
        .attend(1)
        .read()
        .draft("a row that got nothing beside rows that did", "RowIndependence", "FullyMaskedRow")
    )
    script = Script("ragged/causal", batch=3).append(5, [5, 2, 4]).attend(3, causal=True)
    yield script.attend(5, causal=True).draft(
        "the last query stands on each row's own last position", "CausalAlignment", "RowIndependence"
    )
    yield (
        Script("ragged/window", batch=3)
        .append(6, [6, 3, 1])
        .attend(2, causal=True, window=[1, None])
        .attend(1, window=[0, 0])
        .draft("the window follows each row's own position", "WindowOffByOne", "RowIndependence")
    )
    yield (
        Script("ragged/more-queries", batch=2)
        .append(2, [2, 1])
        .attend(4, causal=True)
        .draft("more queries than positions: leading rows are empty", "EmptyKeys", "FullyMaskedRow")
    )
    finishing = (
        Script("ragged/finished", batch=2)
        .append(3)
        .append(1, [1, 0])
        .attend(1)
        .append(1, [1, 0])
        .attend(1)
        .read()
    )
    yield finishing.draft("a row that finished while the other goes on", "RowIndependence")


def _rollback() -> Iterator[Draft]:
    yield (
        Script("truncate/some")
        .append(6)
        .truncate(4, 2)
        .attend(1)
        .append(2)
        .attend(2, causal=True)
        .read()
        .draft("rows cut to 4 and 2, then both go on", "Rollback", "RowIndependence")
    )
    yield (
        Script("truncate/none")
        .append(3)
        .truncate(3, 3)
        .attend(1)
        .read()
        .draft("cut to what is held: nothing changes", "Rollback")
    )
    yield (
        Script("truncate/all")
        .append(3)
        .truncate(0, 0)
        .attend(1)
        .read()
        .append(2)
        .attend(1)
        .read()
        .draft("cut to nothing, then filled again", "Rollback", "StaleReset")
    )
    k = np.full((2, 2, 3, 3), NAN)
    yield (
        Script("truncate/poison")
        .append(2)
        .append(3, k=k, v=np.full((2, 2, 3, 5), NAN))
        .truncate(2, 2)
        .attend(2, causal=True)
        .append(1)
        .attend(1)
        .read()
        .draft("rejected tokens of NaN are gone", "Rollback", "HiddenPoison")
    )
    yield (
        Script("truncate/twice")
        .append(5)
        .truncate(4, 4)
        .truncate(1, 3)
        .attend(1)
        .read()
        .draft("cut twice", "Rollback")
    )
    yield (
        Script("reset/twice")
        .append(4)
        .reset()
        .reset()
        .append(2)
        .attend(1)
        .read()
        .draft("reset on an empty cache", "StaleReset")
    )
    yield (
        Script("reset/middle", capacity=5)
        .append(5)
        .attend(1)
        .reset()
        .append(5)
        .attend(2, causal=True)
        .read()
        .draft("a full cache, emptied and filled again", "StaleReset", "Capacity")
    )
    speculative = Script("truncate/speculative").append(4)
    for kept in (5, 7, 8):
        speculative.append(3).attend(3, causal=True).truncate(kept, kept)
    yield (
        speculative.attend(1)
        .read()
        .draft("three rounds of three drafts, some kept", "Rollback", "ChunkedPrefill")
    )


def _options() -> Iterator[Draft]:
    draw = Draw("kv_cache/options")
    yield (
        Script("options/scale")
        .append(5)
        .attend(2, scale=0.3)
        .attend(2, scale=0)
        .draft("scales of their own, 0 included", "AbsentIsNotZero")
    )
    yield (
        Script("options/softcap")
        .append(5)
        .attend(2, softcap=0.8, causal=True)
        .draft("softcap with causal", "SoftcapOrder")
    )
    mask = draw.choice(0.6, 2, 5)
    yield (
        Script("options/mask")
        .append(5)
        .attend(2, mask=mask)
        .draft("a mask over the positions held", "MaskBroadcast")
    )
    yield (
        Script("options/mask-causal")
        .append(5)
        .attend(2, mask=mask, causal=True)
        .draft("mask and causal intersect", "MaskComposition")
    )
    yield (
        Script("options/bias")
        .append(5)
        .attend(1, bias=draw.normal(4, 1, 5))
        .draft("a bias at decode, one a head", "BiasIsNotMask")
    )
    yield (
        Script("options/bias-hides")
        .append(5)
        .attend(1, bias=np.array([0, -INF, 0, 0, -INF]))
        .draft("-inf in the bias hides", "BiasIsNotMask", "FullyMaskedRow")
    )
    yield (
        Script("options/offset")
        .append(6)
        .attend(2, causal=True, q_offset=1)
        .attend(2, causal=True, q_offset=0)
        .draft("a stated offset wins over the alignment, 0 too", "CausalAlignment", "AbsentIsNotZero")
    )
    yield (
        Script("options/offset-tensor")
        .append(6, [6, 4])
        .attend(2, causal=True, q_offset=np.array([3, 0]))
        .draft("an offset a row", "CausalAlignment", "RowIndependence")
    )
    yield (
        Script("options/window")
        .append(6)
        .attend(3, window=[1, 1])
        .attend(3, window=[2, 0])
        .attend(3, window=[0, None])
        .draft("windows around the aligned queries", "WindowOffByOne")
    )
    yield Script("options/no-queries").append(3).attend(0).draft("no queries: an empty result", "EmptyKeys")
    yield Script("options/no-rows", batch=0).append(3).attend(2).read().draft("no rows", "EmptyKeys")
    yield (
        Script("options/mqa", Hq=6, Hkv=1)
        .append(4)
        .attend(2, causal=True)
        .draft("one KV head for all", "GqaTile")
    )
    yield (
        Script("options/append-nothing")
        .append(0)
        .append(2)
        .append(0)
        .attend(1)
        .read()
        .draft("appends of 0 positions", "EmptyKeys")
    )
