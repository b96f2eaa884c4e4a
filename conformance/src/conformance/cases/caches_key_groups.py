"""The suite `kv_cache`: quantised caches whose keys are quantised by channel, in groups of tokens."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .cache_script import FEW, CacheScript, quantised
from .draft import Draft

NAN, INF = np.nan, np.inf
ALL = ("f32", "f64", "f16", "bf16")
WIDE = ("f32", "f64")
INTEGERS = ("int8", "int4")
ROPE = {"base": 100.0}


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _degenerate()
    yield from _schemes()
    yield from _moves()
    yield from _failures()


def tokens(name: str, rows: Any, n: int, format: str = "int8", **options: Any) -> CacheScript:
    """One head whose keys are these tokens, (T, D), all at once; values are 1, 2, 4, …"""
    k = np.atleast_2d(np.array(rows, float))[None, None]
    T, D = k.shape[2:]
    script = quantised(f"key_groups/{name}", format, **options, key_groups=n, batch=1, Hq=1, Hkv=1, D=D, Dv=1)
    return script.append(T, k=k, v=2.0 ** np.arange(T).reshape(1, 1, T, 1)) if T else script


def add(script: CacheScript, *rows: Any, code: str = "ok") -> CacheScript:
    """More tokens, their values 1."""
    k = np.array(rows, float).reshape(1, 1, len(rows), -1)
    return script.append(len(rows), k=k, v=np.ones((1, 1, len(rows), 1)), code=code)


def _by_hand() -> Iterator[Draft]:
    outlier = tokens("by-hand/outlier", [[1016, 127 / 128], [-1016, -127 / 128]], 2)
    outlier.attend(1, q=np.array([0, 1.0]).reshape(1, 1, 1, 2), scale=1).read(codes=True)
    yield outlier.draft(
        "scales 8 and 1/128: both channels come back as they were. By token the small one would be 0",
        *("ByHand", "KeyGroups"),
        dtypes=ALL,
    )
    tail = tokens("by-hand/tail", [[0.7], [0.3], [254], [0.1]], 3)
    tail.read(codes=True).attend(1, q=np.ones((1, 1, 1, 1)), scale=0.01)
    add(tail, [0.2]).read(codes=True)
    yield (
        add(tail, [1])
        .read(codes=True)
        .stats()
        .draft(
            "0.7, 0.3, 254 are codes 0, 0, 127 of scale 2; 0.1 stays as it is, until 0.2 and 1 have come",
            *("ByHand", "KeyGroups", "GroupTail"),
            dtypes=WIDE,
        )
    )
    for format, half in (("int8", [127, 0.5, 1.5, -2.5]), ("int4", [7, 0.5, 1.5, -2.5])):
        ties = tokens(f"by-hand/ties-{format}", np.array(half).reshape(4, 1), 4, format).read(codes=True)
        yield ties.draft("ties to even along the tokens", "ByHand", "CodeRounding", "KeyGroups", dtypes=ALL)
    cut = add(tokens("by-hand/cut", [[127], [1]], 2).truncate(1).read(codes=True), [254]).read(codes=True)
    yield cut.attend_uniform().draft(
        "127 is restored, and with 254 the scale is 2: codes 64 and 127, not 127 and 127 of the old one",
        *("ByHand", "KeyGroups", "Rollback"),
        dtypes=ALL,
    )
    gone = tokens("by-hand/evicted", [[127], [1], [254], [2], [508]], 2).evict(1).read(codes=True)
    yield (
        gone.evict(4)
        .read(codes=True, positions=True)
        .draft(
            "127 | 254: codes 64, 127 of scale 2; then 2, 508 of scale 4: 0, 127; when 508 goes 0 is left over",
            *("ByHand", "KeyGroups", "EvictedPositions"),
            dtypes=ALL,
        )
    )
    zero = tokens("by-hand/zero-point", [[-1], [254], [3]], 3, zero_point=True).read(codes=True)
    yield zero.draft("scale 1, zero -1: codes 0, 255, 4", "ByHand", "KeyGroups", dtypes=WIDE)
    nibbles = tokens("by-hand/nibbles", [[7, -7, 1], [1, -1, 7]], 2, "int4").read(codes=True)
    yield nibbles.draft(
        "a byte holds two channels of one token: 0x97, 0x01 and 0xF1, 0x07",
        "ByHand",
        "CodeRounding",
        "KeyGroups",
    )


def _degenerate() -> Iterator[Draft]:
    for name in INTEGERS:
        for zero_point in (False, True):
            tail = f"{name}{'-zero' if zero_point else ''}"
            options: dict[str, Any] = {"format": name, "zero_point": zero_point}
            equal = tokens(f"constant/{tail}", [[0.7, 0, 1], [0.7, 0, -2], [0.7, 0, 0.5]], 3, **options)
            yield (
                equal.attend_uniform()
                .read(codes=True)
                .draft("channels that do not change, one of zeros", "KeyGroups", "ZeroGroup", dtypes=ALL)
            )
            tiny = [[3e-45, 1e-42, 1.2e-38], [-1.4e-45, -2e-43, -1e-38], [7e-45, 5e-43, 6e-39]]
            small = tokens(f"subnormal/{tail}", tiny, 3, **options).read(codes=True)
            yield small.draft(
                "scales among the subnormals", "KeyGroups", "ZeroGroup", "Subnormal", dtypes=WIDE
            )
        one = tokens(f"groups-of-1/{name}", [[0.3, -2], [0, 1e-20], [5, 1]], 1, name)
        yield (
            one.truncate(2)
            .attend_uniform()
            .read(codes=True)
            .draft("a scale for each number: every group is full", "KeyGroups", "ZeroGroup", dtypes=WIDE)
        )


def _schemes() -> Iterator[Draft]:
    for n in (1, 2, 4):
        for name, scheme in (
            ("int8", {"format": "int8"}),
            ("int4", {"format": "int4"}),
            ("int8-zero", {"format": "int8", "zero_point": True}),
            ("int4-zero-group", {"format": "int4", "zero_point": True, "group": 2}),
        ):
            draw = Draw(f"kv_cache/key_groups/{name}/{n}")
            # An outlier channel in one head, and another size in the other.
            size = np.array([[1, 1, 30, 1, 1], [0.01] * 5]).reshape(1, 2, 1, 5)
            script = quantised(f"key_groups/schemes/{name}-{n}", **scheme, key_groups=n, Hq=2, D=5, Dv=3)
            script.append(6, [6, 3], k=draw.normal(2, 2, 6, 5) * size).attend(2, causal=True)
            script.read(codes=True, positions=True).stats()
            for lengths in ([1, 1], [1, 0], [0, 1]):
                script.append(1, lengths, k=draw.normal(2, 2, 1, 5) * size)
            script.attend(1).read(codes=True).truncate(5, 2).read(codes=True)
            script.append(3, [2, 3], k=draw.normal(2, 2, 3, 5) * size, padding="left").attend(2, causal=True)
            script.reorder(1, 0).read(codes=True).stats().reset().append(1).attend(1)
            yield script.once().draft(
                "rows of their own lengths, one by one and in chunks, cut, reordered",
                *("KeyGroups", "GroupTail", "RowIndependence"),
                dtypes=ALL if n == 2 and name == "int8" else None,
            )
    draw = Draw("kv_cache/key_groups/one-by-one")
    k, v = draw.normal(1, 2, 7, 3), draw.normal(1, 2, 7, 2)
    for name, chunks in (("once", [7]), ("one-by-one", [1] * 7), ("chunks", [2, 3, 2])):
        script = quantised(f"key_groups/fed/{name}", "int4", key_groups=3, batch=1, Dv=2).once()
        start = 0
        for T in chunks:
            script.append(T, k=k[:, :, start : start + T], v=v[:, :, start : start + T])
            start += T
        yield (
            script.read(codes=True)
            .attend(1, q=np.ones((1, 4, 1, 3)))
            .draft(
                "the same codes however it was fed", "KeyGroups", "GroupTail", "ChunkedPrefill", dtypes=ALL
            )
        )
    empty = quantised("key_groups/empty", "int8", key_groups=2).append(0).attend(2).read(codes=True).stats()
    yield empty.evict(0).truncate(0, 0).draft("nothing held", "EmptyKeys", "KeyGroups")
    none = quantised("key_groups/no-rows", "int8", key_groups=2, batch=0).append(3).attend(1)
    yield none.read(codes=True).draft("no rows", "EmptyKeys", "KeyGroups")
    full = quantised("key_groups/capacity", "int8", key_groups=2, capacity=4).append(3)
    full.append(2, code="capacity_exceeded").read(codes=True).append(1).attend(1).truncate(1, 3).append(1)
    yield full.read(codes=True).draft("a capacity", "Capacity", "NothingChanged", "KeyGroups")


def _moves() -> Iterator[Draft]:
    for name, options in (
        ("int8", {"format": "int8"}),
        ("int4-zero", {"format": "int4", "zero_point": True}),
    ):
        script = quantised(f"key_groups/evict/{name}", **options, key_groups=2, **FEW, track=True)
        script.once().append(7, [7, 4]).attend(2, causal=True).evict(2, 3).read(codes=True, positions=True)
        script.append(1).attend(2).evict_by("key_norm", 3, sinks=1).read(codes=True, positions=True)
        script.attend(1).evict_by("heavy_hitters", 2).evict(99).append(2, [2, 1]).attend(2, causal=True)
        yield (
            script.shift(3, 1)
            .read(codes=True, positions=True, tracked=True)
            .draft("from the first group that changes on all are cut anew", "KeyGroups", "EvictedPositions")
        )
        saved = quantised(f"key_groups/save/{name}", **options, key_groups=3, **FEW).once().append(5, [5, 2])
        saved.save().fork("b").append(1).read(codes=True).append(2).on("b").read(cache="b", codes=True)
        saved.truncate(4, 1).read(codes=True).read(cache="b", codes=True).reset().load().read(codes=True)
        yield (
            saved.append(2, [1, 2])
            .attend(2, causal=True)
            .read(codes=True)
            .stats()
            .draft(
                "codes and the tail: saved, forked, loaded",
                "KeyGroups",
                "GroupTail",
                "SavedState",
                "CacheAliasing",
                dtypes=ALL,
            )
        )
    for name in INTEGERS:
        turned = (
            quantised(f"key_groups/rope/{name}", name, key_groups=2, **FEW, D=4, rope=ROPE)
            .once()
            .append(5, [5, 2])
        )
        turned.attend(2, causal=True).append(2, [1, 2]).attend(2, causal=True).read().truncate(3, 2).append(1)
        turned.attend(1).evict(0).shift(-1, 1).attend(1, causal=True)
        yield turned.read(positions=True).draft(
            "keys turned, then rounded with their group; shifted, restored and turned on",
            *("KeyGroups", "RopePosition", "ShiftTurns"),
            dtypes=ALL if name == "int8" else None,
        )
    far = tokens("shift-overflow", [[3e38, 3e38]], 2, rope=ROPE).shift(1, 0, code="invalid_config")
    yield far.read(positions=True).draft(
        "a key in the tail that would be turned beyond f32", "KeyGroups", "GroupTail", "NothingChanged"
    )
    still = tokens("shift-nothing", [[127, 1], [1, 1], [254, 3]], 2, rope=ROPE).read().shift(0, 0).shift(3, 9)
    yield still.read(positions=True).draft("no key is turned: no bit changes", "KeyGroups", "ShiftTurns")


def _failures() -> Iterator[Draft]:
    for value in (NAN, INF, -INF):
        tail = tokens(f"failure/{value}", [[1, 2], [3, 4], [5, 6]], 2).read(codes=True)
        add(tail, [1, value], code="invalid_config")
        yield (
            add(tail.read(codes=True), [1, 1])
            .read(codes=True)
            .draft(
                "what is not finite does not come into the tail", "NothingChanged", "ErrorCode", "GroupTail"
            )
        )
    far = tokens("failure/range", [[1], [1], [3e38]], 2, zero_point=True).read(codes=True)
    add(far, [-3e38], code="invalid_config").read(codes=True)
    add(far, [2], [-3e38], [3e38], code="invalid_config").read(codes=True)
    yield (
        add(far, [1])
        .read(codes=True)
        .draft(
            "in the tail 3e38 is legal; -3e38 would fill its group, and nothing is appended",
            *("NothingChanged", "ErrorCode", "GroupTail"),
            dtypes=("f32", "f64", "bf16"),
        )
    )
    large = [[3e38], [3e38], [-3e38], [-3e38], [0]]
    for name, evict in (
        ("position", {"positions": [0]}),
        ("policy", {"policy": {"type": "window", "budget": 4}}),
    ):
        script = tokens(f"failure/evict-by-{name}", large, 2, zero_point=True)
        script.steps.append({"do": "evict", **evict})
        script.codes.append("invalid_config")
        yield (
            script.read(codes=True, positions=True)
            .evict(0, 1)
            .read(codes=True, positions=True)
            .draft(
                "a new group of 3e38 and -3e38 has no range: nothing is evicted",
                "NothingChanged",
                "ErrorCode",
                "KeyGroups",
            )
        )
    plain = tokens("failure/range-without-zero", [[3e38], [-3e38]], 2).read(codes=True)
    yield plain.draft("without a zero point the two ends may be far apart", "KeyGroups", dtypes=WIDE)
