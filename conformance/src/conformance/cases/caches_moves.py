"""The suite `kv_cache`: evict and shift, rotated keys, and files that are written and read again."""

from collections.abc import Iterator

import numpy as np

from ..inputs import Draw
from .cache_script import ONE, CacheScript, contiguous, paged, quantised, rotating
from .draft import Draft

ALL = ("f32", "f64", "f16", "bf16")
ROPE = {"base": 100.0}


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _rope()
    yield from _evict()
    yield from _shift()
    yield from _files()


def _rope() -> Iterator[Draft]:
    def turned(name: str) -> CacheScript:
        return contiguous(f"rope/by-hand/{name}", batch=1, Hq=1, Hkv=1, D=2, Dv=1, rope={})

    unit, v = np.array([1.0, 0.0]).reshape(1, 1, 1, 2), np.array([1.0, 2, 4]).reshape(1, 1, 3, 1)
    decode = turned("decode")
    for t in range(3):
        decode.append(1, k=unit, v=v[:, :, t : t + 1])
    yield (
        decode.attend(1, q=unit, scale=1)
        .read()
        .draft(
            "scores cos 2, cos 1, 1: 2.937694; from position 0 it would be 2.380015, turned twice 2.163366",
            "ByHand",
            "RopePosition",
            dtypes=ALL,
        )
    )
    chunk = turned("chunk").append(2, k=np.repeat(unit, 2, 2), v=v[:, :, :2]).append(1, k=unit, v=v[:, :, 2:])
    yield chunk.attend(1, q=unit, scale=1).draft("the same in two appends", "ByHand", "RopePosition")
    for name, rope, D in (
        ("interleaved", {"interleaved": True}, 6),
        ("partial", {"rotary_dim": 4}, 6),
        ("linear", {"scaling": {"type": "linear", "factor": 4}}, 4),
        ("llama3", {"scaling": {"type": "llama3", "factor": 8, "original_length": 64}}, 8),
    ):
        script = (
            contiguous(f"rope/{name}", D=D, rope=rope).append(4).attend(4, causal=True).append(1).attend(1)
        )
        yield (
            script.attend(2, q_offset=1, causal=True)
            .read()
            .draft("options of rope", "RopePosition", "RopePairing")
        )
    ragged = contiguous("rope/ragged", batch=3, D=4, rope=ROPE).append(5, [5, 1, 3]).attend(2, causal=True)
    ragged.append(2, [0, 2, 1], padding="left").attend(2, causal=True).truncate(3, 2, 0).append(2)
    yield (
        ragged.attend(2, causal=True)
        .read()
        .draft(
            "each row turns by its own positions, padding does not count",
            "RopePosition",
            "RowIndependence",
            "LeftPadding",
        )
    )
    window = rotating("rope/rotating", 4, 1, D=4, rope=ROPE)
    for count in (3, 6, 1, 1):
        window.append(count).attend(count)
    yield window.read(positions=True).draft(
        "positions go on when the window is full; sinks keep theirs", "RopePosition", "KeptSinks", dtypes=ALL
    )
    reset = contiguous("rope/reset", D=4, rope=ROPE).append(3).reset().append(2).attend(2, causal=True).read()
    yield reset.draft("after a reset positions begin at 0", "RopePosition", "StaleReset")


def _evict() -> Iterator[Draft]:
    hand = contiguous("evict/by-hand", **ONE).append_values(1, 2, 4, 8).evict(1, 2).attend_uniform()
    hand.append_values(16).attend_uniform(window=[1, 0]).read(positions=True)
    yield hand.draft(
        "4.5; the next stands at 4, and a window of 2 sees positions 3 and 4: 12",
        "ByHand",
        "EvictedPositions",
        dtypes=ALL,
    )
    for script in (
        contiguous("evict/contiguous", batch=3),
        quantised("evict/quantised", "int8", batch=3),
        contiguous("evict/rope", batch=3, D=4, rope=ROPE),
        quantised("evict/rope-quantised", "int8", batch=3, D=4, rope=ROPE),
    ):
        script.append(6, [6, 2, 4]).evict(0, 3, 9).attend(2, causal=True).append(2, [2, 1, 0])
        script.attend(3, causal=True, window=[3, None]).read(positions=True).evict().evict(1, 1)
        script.attend(2, mask=Draw("kv_cache/evict").choice(0.7, 2, 5)).truncate(2, 1, 1).append(1)
        yield (
            script.attend(2, causal=True)
            .read(positions=True)
            .stats()
            .draft("gaps stay, whatever comes after", "EvictedPositions", "RowIndependence")
        )
    all_gone = (
        contiguous("evict/all").append(3).evict(0, 1, 2).attend(1).append(1).read(positions=True).reset()
    )
    yield (
        all_gone.append(1)
        .read(positions=True)
        .draft(
            "nothing is left, and the next stands at 3; a reset begins again",
            "EvictedPositions",
            "FullyMaskedRow",
        )
    )
    yield (
        contiguous("evict/capacity", capacity=4)
        .append(4)
        .append(1, code="capacity_exceeded")
        .evict(0, 2)
        .append(2)
        .attend(2, causal=True)
        .read(positions=True)
        .draft("evicted slots make room", "Capacity", "EvictedPositions")
    )
    for script in (contiguous("evict/no-rows", batch=0), quantised("evict/nothing-held", "int8", capacity=0)):
        script.append(0).evict().evict(1).shift(1, 0).attend(1).read(positions=True)
        yield script.draft("no rows, or nothing held", "EmptyKeys", "EvictedPositions")
    yield (
        contiguous("evict/failure/fraction")
        .append(3)
        .evict(0.5, code="invalid_config")
        .read()
        .draft("half a position", "ErrorCode", "NothingChanged")
    )


def _shift() -> Iterator[Draft]:
    hand = contiguous("shift/by-hand", batch=1, Hq=1, Hkv=1, D=2, Dv=1, rope={})
    unit, v = np.array([1.0, 0.0]).reshape(1, 1, 1, 2), np.array([7.0, 7, 1, 2]).reshape(1, 1, 4, 1)
    hand.append(4, k=np.repeat(unit, 4, 2), v=v).evict(0, 1).shift(-2, 2).append(
        1, k=unit, v=np.full((1, 1, 1, 1), 4.0)
    )
    yield (
        hand.attend(1, q=unit, scale=1)
        .read(positions=True)
        .draft(
            "two tokens fewer: 1, 2, 4 at positions 0, 1, 2 give 2.937694 as if they had always stood there",
            "ByHand",
            "ShiftTurns",
            dtypes=ALL,
        )
    )
    for script in (
        contiguous("shift/contiguous"),
        quantised("shift/quantised", "int8"),
        contiguous("shift/rope", D=4, rope=ROPE),
        contiguous("shift/rope-linear", D=4, rope={"scaling": {"type": "linear", "factor": 2}}),
        contiguous("shift/rope-interleaved", D=6, rope={"interleaved": True, "rotary_dim": 4}),
        quantised("shift/rope-quantised", "int8", D=4, rope=ROPE),
        quantised("shift/rope-f16", "f16", D=4, rope=ROPE),
    ):
        script.append(7, [7, 5]).evict(1, 2).attend(2, causal=True).shift(-2, 3).attend(2, causal=True)
        script.read(positions=True).append(1).attend(2, causal=True, window=[3, None]).shift(3, 2).shift(
            -1, 2
        )
        script.read(positions=True).append(2).attend(3, causal=True).shift(0, 0).shift(4, 0)
        yield (
            script.attend(2, causal=True)
            .read(positions=True)
            .draft("shifts add up; only keys turn", "ShiftTurns", "EvictedPositions")
        )
    for name, by, start, code in (
        ("below-zero", -1, 0, "invalid_config"),
        ("collides", -1, 2, "invalid_config"),
        ("passes", -2, 3, "invalid_config"),
        ("fraction", 0.5, 0, "invalid_config"),
    ):
        script = contiguous(f"shift/failure/{name}", D=4, rope=ROPE).append(4).shift(by, start, code=code)
        yield script.read(positions=True).attend(1).draft(f"shift: {name}", "ErrorCode", "NothingChanged")
    one_row = contiguous("shift/failure/one-row").append(4, [4, 1]).evict(0).append(1).shift(-1, 1, code="ok")
    yield (
        one_row.read(positions=True)
        .shift(-1, 0, code="invalid_config")
        .read(positions=True)
        .draft("a row that cannot move keeps all where they are", "NothingChanged", "RowIndependence")
    )
    nothing = contiguous("shift/nothing").append(3).shift(5, 3).append(1).read(positions=True)
    yield nothing.draft("none from 3 on: the counter stands at 3 and does not move", "EvictedPositions")


def _files() -> Iterator[Draft]:
    for script in (
        contiguous("save/contiguous", batch=3),
        contiguous("save/contiguous-rope", batch=3, D=4, rope=ROPE),
        contiguous("save/capacity", batch=3, capacity=9),
        rotating("save/rotating", 3, 1, batch=3),
        rotating("save/rotating-rope", 3, 1, batch=3, D=4, rope=ROPE),
        paged("save/paged", 3, 14, batch=3),
        *(quantised(f"save/{name}", name, batch=3) for name in ("f16", "bf16", "int8", "int4", "fp8_e4m3")),
        quantised("save/int8-zero", "int8", batch=3, zero_point=True, group=2),
        quantised("save/int4-zero", "int4", batch=3, zero_point=True),
        quantised("save/int8-rope", "int8", batch=3, D=4, rope=ROPE),
    ):
        script.append(5, [5, 0, 2]).save().append(2).attend(1).reset().read().load().read(positions=True)
        script.attend(2, causal=True).append(2, [0, 2, 1]).attend(2, causal=True).read(positions=True).stats()
        halves = script.kind["kind"] in ("paged", "quantised")
        yield script.draft(
            "saved, forgotten, loaded: it goes on",
            "SavedState",
            dtypes=("f32", "bf16") if halves else ("f32", "f64"),
        )
    other = (
        contiguous("save/into-a-fork").append(3).save().fork("b").append(2).load(cache="b").append(1).on("b")
    )
    yield (
        other.read(cache="b")
        .read()
        .attend(2, cache="b")
        .draft("loaded into another cache", "SavedState", "CacheAliasing")
    )
    gaps = (
        contiguous("save/gaps")
        .append(5, [5, 3])
        .evict(1, 4)
        .save()
        .reset()
        .load()
        .append(1)
        .read(positions=True)
    )
    yield gaps.attend(2, causal=True, window=[2, None]).draft(
        "positions with gaps, and the counter beyond them", "SavedState", "EvictedPositions"
    )
    moved = contiguous("save/moved", D=4, rope=ROPE).append(5).evict(0, 1).shift(-2, 2).save().reset().load()
    yield (
        moved.append(1)
        .attend(2, causal=True)
        .read(positions=True)
        .draft("turned keys are loaded turned", "SavedState", "ShiftTurns")
    )
    wrapped = rotating("save/wrapped", 3, 1).append(4).append(7, [7, 1]).save().append(2).load().attend(3)
    yield (
        wrapped.truncate(10, 4)
        .append(1)
        .attend(2)
        .read(positions=True)
        .draft("a window that has wrapped", "SavedState", "RingWrap")
    )
    shared = (
        paged("save/shared", 2, 10)
        .append(4)
        .fork("b")
        .save()
        .load(cache="b")
        .stats()
        .append(1)
        .on("b")
        .stats()
    )
    yield (
        shared.read()
        .read(cache="b")
        .drop("b")
        .reset()
        .load()
        .stats()
        .draft("loaded pages are pages of their own", "SavedState", "PageCount")
    )
    pool = (
        paged("save/pool", 2, 5).append(4).save().fork("b").load(code="capacity_exceeded", cache="b").stats()
    )
    yield (
        pool.read(cache="b")
        .drop("b")
        .load()
        .read()
        .stats()
        .draft("a file that needs more pages than are free", "Capacity", "NothingChanged", "SavedState")
    )
    empty = (
        contiguous("save/empty").append(0).save().append(2).load().read(positions=True).append(1).attend(1)
    )
    yield empty.draft("nothing, saved", "SavedState", "EmptyKeys")
    yield (
        contiguous("save/no-rows", batch=0)
        .append(1)
        .save()
        .load()
        .read()
        .draft("no rows", "SavedState", "EmptyKeys")
    )
    missing = (
        contiguous("save/failure/missing")
        .append(2)
        .load("there-is-no-such.file", code="invalid_request")
        .read()
    )
    yield missing.attend(1).draft("a file that is not there", "ErrorCode", "NothingChanged", "SavedState")
