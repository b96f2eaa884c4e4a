"""The suite `kv_cache`: rotating caches, whose window moves on and whose first tokens may stay."""

from collections.abc import Iterator

import numpy as np

from ..inputs import Draw
from .cache_script import ONE, rotating
from .draft import Draft

NAN, INF = np.nan, np.inf
ALL = ("f32", "f64", "f16", "bf16")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _boundaries()
    yield from _wrapping()
    yield from _rollback()
    yield from _conditions()
    yield from _rows()


def _by_hand() -> Iterator[Draft]:
    decode = rotating("rotating/by-hand/decode", 3, **ONE)
    for value in (1, 2, 4, 8):
        decode.append_values(value).attend_uniform()
    yield decode.read(positions=True).draft(
        "window 3: 1, 1.5, 7/3, 14/3; nothing is forgotten at length 3",
        "ByHand",
        "WindowBoundary",
        dtypes=ALL,
    )
    sinks = rotating("rotating/by-hand/keep", 2, 1, **ONE)
    for value in (100, 1, 2, 4, 8):
        sinks.append_values(value).attend_uniform()
    yield sinks.read(positions=True).draft(
        "window 2 and one sink: 100, 50.5, 103/3, 106/3, 112/3", "ByHand", "KeptSinks"
    )
    prefill = (
        rotating("rotating/by-hand/long-prefill", 3, **ONE).append_values(1, 2, 4, 8, 16).attend_uniform(5)
    )
    yield prefill.read(positions=True).draft(
        "a prefill of 5 into a window of 3 sees what a full cache would: 1, 1.5, 7/3, 14/3, 28/3",
        "ByHand",
        "RingWrap",
    )
    again = rotating("rotating/by-hand/rollback", 4, **ONE).append_values(1, 2, 4).append_values(100, 200)
    yield (
        again.truncate(4)
        .append_values(8)
        .attend_uniform()
        .read(positions=True)
        .draft("one draft of two kept: (2 + 4 + 100 + 8) / 4 = 28.5", "ByHand", "Rollback", "RingWrap")
    )


def _boundaries() -> Iterator[Draft]:
    """Around the window and its double, at once and one by one."""
    W = 4
    for keep in (0, 2):
        for length in (W - 1, W, W + 1, 2 * W, 2 * W + 1):
            name = f"rotating/length/{length}" + (f"-keep-{keep}" if keep else "")
            draw = Draw(f"kv_cache/{name}")
            k, v, q = (
                draw.normal(2, 2, length + 1, 3),
                draw.normal(2, 2, length + 1, 5),
                draw.normal(2, 4, length, 3),
            )
            whole = rotating(name, W, keep).append(length, k=k[:, :, :length], v=v[:, :, :length])
            whole.attend(length, q=q).read(positions=True)
            yield (
                whole.append(1, k=k[:, :, length:], v=v[:, :, length:])
                .attend(1)
                .read(positions=True)
                .draft("a prefill up to here, and one more", "WindowBoundary", "RingWrap")
            )
            single = rotating(f"{name}/one-by-one", W, keep)
            for t in range(length):
                now = slice(t, t + 1)
                single.append(1, k=k[:, :, now], v=v[:, :, now]).attend(1, q=q[:, :, now])
            yield single.read(positions=True).draft("the same, token by token", "WindowBoundary", "RingWrap")


def _wrapping() -> Iterator[Draft]:
    for splits in ((2, 8), (3, 3, 3), (1, 7, 2), (8, 1), (4, 0, 5)):
        script = rotating(f"rotating/chunks/{'-'.join(map(str, splits))}", 3, 1)
        for count in splits:
            script.append(count).attend(count)
        yield script.read(positions=True).draft(
            "chunks that wrap, some of them twice", "RingWrap", "ChunkedPrefill"
        )
    one = rotating("rotating/window/1", 1)
    yield (
        one.append(3)
        .attend(3)
        .append(1)
        .attend(1)
        .read()
        .draft("a window of the token alone", "WindowBoundary")
    )
    yield (
        rotating("rotating/window/wide", 50)
        .append(6)
        .attend(6)
        .append(2)
        .attend(2)
        .read(positions=True)
        .draft("a window that is never full", "WindowBoundary")
    )
    yield (
        rotating("rotating/keep/more-than-held", 2, 5)
        .append(3)
        .attend(3)
        .append(4)
        .attend(4)
        .append(3)
        .attend(3)
        .read(positions=True)
        .draft("more sinks than tokens at first", "KeptSinks")
    )
    yield (
        rotating("rotating/older-queries", 3)
        .append(7)
        .append(2)
        .attend(5)
        .attend(2, q_offset=2)
        .draft("queries older than the last append see what is still held", "RingWrap")
    )
    yield (
        rotating("rotating/empty", 3)
        .append(0)
        .attend(2)
        .read(positions=True)
        .draft("nothing held", "EmptyKeys")
    )
    poison = rotating("rotating/poison", 2).append(
        2, k=np.full((2, 2, 2, 3), NAN), v=np.full((2, 2, 2, 5), INF)
    )
    yield (
        poison.append(3)
        .attend(1)
        .append(1)
        .attend(1)
        .read()
        .draft("forgotten NaN is gone", "HiddenPoison", "RingWrap")
    )
    yield (
        rotating("rotating/large", 33, 4, batch=1, Hq=4, Hkv=2, D=16, Dv=16)
        .append(70)
        .attend(1)
        .append(40)
        .attend(5)
        .append(1)
        .attend(1)
        .draft("a window of 33", "RingWrap", "VectorTail")
    )


def _rollback() -> Iterator[Draft]:
    inside = rotating("rotating/truncate/inside", 4).append(6).append(3).truncate(8, 7).attend(1)
    yield (
        inside.read(positions=True)
        .append(2)
        .attend(2)
        .read(positions=True)
        .draft("rows cut by one and by two, which are still held", "Rollback", "RingWrap", "RowIndependence")
    )
    beyond = rotating("rotating/truncate/beyond", 3)
    for _ in range(6):
        beyond.append(1)
    beyond.truncate(5, 4, code="invalid_config").attend(1).truncate(4, 6, code="invalid_config")
    yield (
        beyond.truncate(6, 6)
        .read(positions=True)
        .append(1)
        .attend(1)
        .read()
        .draft("what was forgotten cannot come back", "Rollback", "RingWrap", "NothingChanged")
    )
    partly = rotating("rotating/truncate/held-by-luck", 3).append(8).truncate(4, 2).attend(2)
    yield (
        partly.append(3)
        .attend(3)
        .read(positions=True)
        .draft("a long chunk holds more than its window, so more can be taken back", "Rollback", "RingWrap")
    )
    sinks = rotating("rotating/truncate/keep", 2, 2).append(2).append(1).append(1).append(1)
    yield (
        sinks.truncate(3, 3, code="invalid_config")
        .truncate(2, 2)
        .read(positions=True)
        .truncate(1, 2)
        .append(2)
        .attend(2)
        .read(positions=True)
        .draft("sinks are always held, so a row can be cut down to them", "Rollback", "KeptSinks")
    )
    yield (
        rotating("rotating/truncate/all", 3)
        .append(5)
        .truncate(0, 0)
        .attend(1)
        .append(4)
        .attend(4)
        .read(positions=True)
        .draft("cut to nothing: positions begin at 0 again", "Rollback", "StaleReset")
    )
    for name, lengths, code in (
        ("longer", (6, 5), "invalid_config"),
        ("negative", (-1, 5), "invalid_config"),
        ("count", (5,), "shape_mismatch"),
    ):
        yield (
            rotating(f"rotating/truncate/{name}", 4)
            .append(5)
            .truncate(*lengths, code=code)
            .read(positions=True)
            .attend(1)
            .draft(f"truncate: {name}", "ErrorCode", "NothingChanged")
        )


def _conditions() -> Iterator[Draft]:
    draw = Draw("kv_cache/rotating/conditions")
    yield (
        rotating("rotating/mask", 3, 1)
        .append(4)
        .append(2)
        .attend(2, mask=draw.choice(0.6, 2, 5))
        .attend(1, bias=draw.normal(4, 1, 5))
        .draft("mask and bias run over the slots held, in their order", "MaskComposition", "BiasIsNotMask")
    )
    yield (
        rotating("rotating/causal-false", 3)
        .append(5)
        .attend(5, causal=False)
        .attend(5, causal=True)
        .draft("causal whatever is said", "CausalAlignment")
    )
    yield (
        rotating("rotating/window-inside", 4, 1)
        .append(6)
        .attend(3, window=[1, None])
        .attend(3, window=[None, 0])
        .attend(2, window=[9, 9], q_offset=3)
        .draft("a window of the attend intersects with the cache's", "MaskComposition", "WindowOffByOne")
    )
    yield (
        rotating("rotating/options", 4)
        .append(6)
        .attend(2, softcap=0.7, scale=0.3)
        .attend(2, q_offset=np.array([3, 4]))
        .draft("options of sdpa", "SoftcapOrder")
    )


def _rows() -> Iterator[Draft]:
    yield (
        rotating("rotating/ragged", 3, 1, batch=3)
        .append(6, [6, 0, 2])
        .attend(2)
        .append(4, [1, 4, 0])
        .attend(4)
        .read(positions=True)
        .append(2, [0, 2, 2])
        .attend(2)
        .read(positions=True)
        .draft(
            "each row forgets by its own length, and one that got nothing forgets nothing", "RowIndependence"
        )
    )
    yield (
        rotating("rotating/left", 3)
        .append(5, [2, 5], padding="left")
        .attend(2)
        .append(3, [3, 1], padding="left")
        .attend(3)
        .read(positions=True)
        .draft("padding on the left takes no position", "LeftPadding", "RowIndependence")
    )
    yield (
        rotating("rotating/no-rows", 3, batch=0)
        .append(3)
        .attend(2)
        .read(positions=True)
        .draft("no rows", "EmptyKeys")
    )
    halves = rotating("rotating/half", 4, 1).append(6).attend(3).append(1).attend(1).read(positions=True)
    yield halves.draft("halves are held, attention in f32", "HalfInside", "RingWrap", dtypes=("f16", "bf16"))
