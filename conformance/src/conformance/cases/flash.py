"""The suite `flash`, first part: sdpa in tiles and in parts of every size. The plain variant answers them too.

With block_k = 4 over 19 keys there are tiles 0-3, 4-7, 8-11, 12-15 and 16-18.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, score_form, uniform_form
from .sdpa_sizes import random_inputs

BOTH = ("output", "lse")
TILE = {"block_q": 3, "block_k": 4, "splits": 3}
INF, NAN = np.inf, np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _tiles()
    yield from _hidden()
    yield from _options()
    yield from _special()
    yield from _halves()


def _case(name: str, inputs: Any, note: str, *flags: str, **config: Any) -> Draft:
    dtypes = config.pop("dtypes", ("f32", "f64"))
    return Draft(f"flash/{name}", "sdpa", inputs, config, BOTH, flags, note, dtypes=dtypes)


def _inputs(name: str, *sizes: int) -> Tensors:
    return random_inputs(f"flash/{name}", *(sizes or (1, 2, 1, 7, 19, 5, 3)))


def _by_hand() -> Iterator[Draft]:
    scores = score_form([0, np.log(2)], [3, 6])
    note = "one key a tile: 3, then rescaled to 5; lse ln 3"
    yield _case(
        "by-hand/one-third", scores, note, "ByHand", "VectorTail", "LseNatural", scale=1, block_k=1, splits=2
    )
    rising = score_form([-2e4, -1e4, 0, 1e4], [1, 2, 4, 8])
    yield _case(
        "by-hand/rising",
        rising,
        "each tile outweighs all before it: 8",
        "ByHand",
        "Overflow",
        scale=1,
        block_k=1,
    )
    falling = score_form([1e4, 0, -1e4, -2e4], [1, 2, 4, 8])
    yield _case(
        "by-hand/falling", falling, "no tile adds to the first: 1", "ByHand", "Overflow", scale=1, block_k=1
    )
    causal = uniform_form(5, [1, 2, 4, 8, 16])
    note = "[1, 1.5, 7/3, 3.75, 6.2], whatever the tiles"
    yield _case(
        "by-hand/causal",
        causal,
        note,
        "ByHand",
        "CausalAlignment",
        causal=True,
        block_q=2,
        block_k=2,
        splits=2,
    )
    more = uniform_form(4, [1, 3])
    note = "Tq = 4, Tk = 2, bottom-right: [0, 0, 1, 2]"
    yield _case(
        "by-hand/more-queries",
        more,
        note,
        "EmptyKeys",
        "HiddenTile",
        causal=True,
        q_offset=-2,
        block_q=2,
        block_k=1,
    )


def _tiles() -> Iterator[Draft]:
    for block in (1, 2, 3, 5, 7, 8, 18, 19, 20, 64):
        note = f"tiles of {block} keys over 19"
        yield _case(f"block-k/{block}", _inputs("block-k"), note, "VectorTail", block_k=block)
    for block in (1, 2, 3, 6, 7, 8):
        note = f"tiles of {block} queries over 7"
        yield _case(
            f"block-q/{block}",
            _inputs("block-q"),
            note,
            "VectorTail",
            block_q=block,
            causal=True,
            q_offset=12,
        )
    for splits in (1, 2, 3, 7, 18, 19, 20, 50):
        note = f"{splits} parts of 19 keys; beyond 19 some are empty"
        yield _case(f"splits/{splits}", _inputs("splits"), note, "VectorTail", "EmptyState", splits=splits)
    for Tk in (63, 64, 65, 127, 129):
        yield _case(
            f"default/kv-len-{Tk}", _inputs(f"kv-len/{Tk}", 1, 2, 1, 2, Tk, 4, 3), f"Tk = {Tk}", "VectorTail"
        )
    for Tq in (63, 64, 65):
        yield _case(
            f"default/q-len-{Tq}", _inputs(f"q-len/{Tq}", 1, 1, 1, Tq, 9, 4, 3), f"Tq = {Tq}", "VectorTail"
        )
    for D in (1, 8, 17, 33):
        yield _case(
            f"head-size/{D}",
            _inputs(f"head-size/{D}", 1, 2, 2, 3, 9, D, D + 1),
            f"D = {D}",
            "VectorTail",
            **TILE,
        )
    for Hq, Hkv in ((6, 2), (4, 1), (6, 3)):
        inputs = _inputs(f"gqa/{Hq}-{Hkv}", 2, Hq, Hkv, 4, 9, 4, 3)
        yield _case(f"gqa/{Hq}-{Hkv}", inputs, f"{Hq} query heads on {Hkv}", "GqaTile", **TILE)
    for name, sizes in {
        "keys": (2, 2, 1, 3, 0, 4, 5),
        "queries": (2, 2, 1, 0, 9, 4, 5),
        "rows": (0, 2, 1, 3, 9, 4, 5),
        "values": (1, 2, 1, 3, 9, 4, 0),
        "one": (1, 1, 1, 1, 1, 1, 1),
    }.items():
        yield _case(
            f"empty/{name}", _inputs(f"empty/{name}", *sizes), "sizes of 0 and 1", "EmptyKeys", **TILE
        )


def _hidden() -> Iterator[Draft]:
    """Tiles without a visible key: first, in the middle, last, all of them; per row, so that rows of a tile differ."""
    flags = ("HiddenTile", "FullyMaskedRow")
    for name, shown in {
        "first": slice(4, 19),
        "first-two": slice(9, 19),
        "last": slice(0, 16),
        "all-but-middle": slice(8, 12),
        "one-key": slice(18, 19),
        "nothing": slice(0, 0),
    }.items():
        mask = np.zeros(19, bool)
        mask[shown] = True
        yield _case(
            f"hidden/{name}", _inputs("hidden") | {"mask": mask}, f"only keys {name} visible", *flags, **TILE
        )
    middle = np.ones(19, bool)
    middle[4:16] = False
    yield _case(
        "hidden/middle",
        _inputs("hidden") | {"mask": middle},
        "three tiles hidden in the middle",
        *flags,
        **TILE,
    )
    staggered = np.arange(19) >= 3 * np.arange(7)[:, None]
    note = "row i begins at key 3 i: rows of one tile begin in different tiles; row 6 sees only one"
    yield _case("hidden/staggered", _inputs("hidden") | {"mask": staggered}, note, *flags, **TILE)
    mixed = Draw("flash/hidden/mixed").choice(0.3, 2, 7, 19)
    mixed[:, 3] = False
    yield _case(
        "hidden/mixed",
        _inputs("hidden") | {"mask": mixed},
        "a mask a head, one row of nothing",
        *flags,
        **TILE,
    )
    bias = np.where(staggered, Draw("flash/hidden/bias").normal(7, 19), -INF)
    yield _case(
        "hidden/bias",
        _inputs("hidden") | {"bias": bias},
        "the same by a bias of -inf",
        *flags,
        "BiasIsNotMask",
        **TILE,
    )
    windowed = _inputs("hidden/window", 1, 1, 1, 19, 19, 4, 3)
    note = "both ends of each row hidden"
    yield _case("hidden/window", windowed, note, *flags, "WindowOffByOne", window=[2, 1], **TILE)
    yield _case(
        "hidden/window-one",
        windowed,
        "each query sees itself",
        *flags,
        "WindowOffByOne",
        window=[0, 0],
        **TILE,
    )
    note = "a window far behind the keys: nothing"
    yield _case("hidden/window-beyond", windowed, note, *flags, window=[3, 0], q_offset=40, **TILE)
    lengths = _inputs("hidden/lengths", 5, 1, 1, 3, 19, 4, 3) | {"kv_lengths": np.array([0, 4, 5, 19, 1])}
    yield _case(
        "hidden/lengths", lengths, "rows that end in different tiles", *flags, "RowIndependence", **TILE
    )
    offsets = _inputs("hidden/offsets", 3, 2, 1, 4, 9, 4, 3) | {"q_offset": np.array([-3, 0, 20])}
    yield _case("hidden/offsets", offsets, "a diagonal a row", *flags, "CausalAlignment", causal=True, **TILE)
    poisoned = _inputs("hidden/poison")
    poisoned["k"][:, :, 4:12], poisoned["v"][:, :, 4:12] = NAN, INF
    poisoned |= {"mask": ~((np.arange(19) >= 4) & (np.arange(19) < 12))}
    yield _case("hidden/poison", poisoned, "NaN and infinity in hidden tiles", *flags, "HiddenPoison", **TILE)
    beyond = _inputs("hidden/causal-poison", 1, 1, 1, 7, 7, 4, 3)
    beyond["v"][:, :, 6] = NAN
    note = "NaN in the last value reaches the last row only"
    yield _case("hidden/causal-poison", beyond, note, "HiddenPoison", "VisibleNaN", causal=True, **TILE)


def _options() -> Iterator[Draft]:
    sinks = {"sinks": np.array([0.5, -3.0])}
    yield _case(
        "sinks/plain", _inputs("sinks") | sinks, "the sink counts once, not once a part", "Sink", **TILE
    )
    for splits in (1, 2, 5, 19):
        note = f"the sink counts once in {splits} parts"
        yield _case(
            f"sinks/splits-{splits}", _inputs("sinks") | sinks, note, "Sink", splits=splits, block_k=splits
        )
    large = {"sinks": np.array([300.0, -300.0])}
    yield _case(
        "sinks/large",
        _inputs("sinks") | large,
        "a sink far above, and far below, all scores",
        "Sink",
        "Overflow",
        **TILE,
    )
    hidden = _inputs("sinks") | sinks | {"mask": np.zeros(19, bool)}
    yield _case("sinks/no-key", hidden, "output 0, lse = sink", "Sink", "HiddenTile", **TILE)
    staggered = _inputs("sinks") | sinks | {"mask": np.arange(19) >= 3 * np.arange(7)[:, None]}
    yield _case(
        "sinks/staggered", staggered, "rows that begin in different tiles", "Sink", "HiddenTile", **TILE
    )
    yield _case("options/scale", _inputs("options"), "scale 0 is uniform", "AbsentIsNotZero", scale=0, **TILE)
    yield _case(
        "options/scale-negative",
        _inputs("options"),
        "a negative scale",
        "AbsentIsNotZero",
        scale=-0.7,
        **TILE,
    )
    masked = _inputs("options") | {"mask": Draw("flash/options/mask").choice(0.6, 7, 19)}
    yield _case("options/softcap", masked, "the cap before the mask", "SoftcapOrder", softcap=1.5, **TILE)
    biased = _inputs("options") | {"bias": Draw("flash/options/bias").normal(2, 1, 19)}
    yield _case("options/bias", biased, "a bias a head, broadcast over queries", "MaskBroadcast", **TILE)
    everything = masked | biased | sinks | {"kv_lengths": np.array([17])}
    note = "mask, bias, lengths, sinks, softcap, window and causal"
    more: dict[str, Any] = {"causal": True, "q_offset": 11, "window": [9, None], "softcap": 3.0}
    yield _case("options/everything", everything, note, "MaskComposition", **more, **TILE)


def _special() -> Iterator[Draft]:
    visible = _inputs("special")
    visible["k"][:, :, 9, 0] = NAN
    yield _case("special/nan", visible, "NaN in the third of five tiles", "VisibleNaN", **TILE)
    infinite = _inputs("special") | {"bias": np.where(np.arange(19) == 2, INF, 0.0)}
    yield _case(
        "special/infinity",
        infinite,
        "a score of +inf in the first tile makes every row NaN",
        "InfiniteScore",
        **TILE,
    )
    large = _inputs("special")
    large["q"] = large["q"] * 1e4
    yield _case("special/large", large, "scores of thousands", "Overflow", **TILE)
    low = score_form(np.full(9, -1e5) + np.log(np.arange(1, 10)), np.arange(9.0))
    yield _case(
        "special/low", low, "a running maximum that starts at 0 underflows", "Overflow", scale=1, **TILE
    )


def _halves() -> Iterator[Draft]:
    halves: dict[str, Any] = {"dtypes": ("f16", "bf16"), **TILE}
    yield _case("half/plain", _inputs("half"), "states between tiles stay in f32", "HalfInside", **halves)
    masked = _inputs("half") | {"mask": np.arange(19) >= 3 * np.arange(7)[:, None]}
    yield _case(
        "half/staggered",
        masked,
        "rows that begin in different tiles; an lse of f32",
        "HalfInside",
        "HiddenTile",
        **halves,
    )
    sinks = _inputs("half") | {"sinks": np.array([0.5, -3.0])}
    yield _case("half/sinks", sinks, "with sinks", "HalfInside", "Sink", causal=True, q_offset=12, **halves)
    long = _inputs("half/long", 1, 2, 1, 2, 129, 16, 8)
    yield _case("half/long", long, "129 keys, tiles of their own size", "HalfInside", dtypes=("f16", "bf16"))
