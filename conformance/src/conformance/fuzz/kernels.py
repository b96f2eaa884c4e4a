"""Questions about sdpa that a kernel gets wrong: lengths around its tiles, hidden tiles, poison in them, odd heads.

A kernel goes over queries and keys in vectors of 4, 8 or 16 lanes and in tiles of some multiple of those, passes by
tiles that nobody sees, corrects its sums between tiles of keys, and treats what is left over by itself. So lengths are
one below, at and above such multiples; whole tiles at the start, in the middle and at the end are hidden, by each
condition that can hide them; what is hidden holds NaN or infinity; and the scores grow or shrink from tile to tile.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cases.draft import Draft
from ..oracle.sdpa import visible_keys
from ..tensors import Tensors
from .draws import Chooser

INF, NAN = np.inf, np.nan
UNITS = (4, 8, 16, 64, 256)  # lanes of a vector, keys or queries of a tile
KEYS = (4, 8, 16, 64, 64, 256, 256)  # the same, as often as lengths of keys are made of them
HIDDEN = (64, 256, 128, 64, 16, 8, 4)  # and tiles that are hidden
WIDTHS = (8, 1, 3, 17, 64, 80, 96, 128)
GROUPS = (1, 2, 3, 4, 5, 7, 8, 16)
# The answer and its bound are derived row by row in float64: so much keeps a question to a tenth of a second or so.
MOST_ROWS, MOST_KEYS, MOST_PRODUCTS = 320, 1100, 1 << 23

Shape = tuple[int, int, int, int]  # B, Hq, Tq, Tk


def sdpa(choose: Chooser) -> Draft:
    """One question in f32, mostly: sizes first, then what hides keys, then what lies where nobody looks."""
    B, Hkv, G = choose.one_of([1, 1, 2]), choose.one_of([1, 1, 2]), choose.one_of(GROUPS)
    D = choose.one_of(WIDTHS)
    Dv = choose.one_of(WIDTHS) if choose.sometimes() else D
    Hq = Hkv * G
    Tk = edge(choose, MOST_KEYS, KEYS)
    most = min(MOST_ROWS, MOST_PRODUCTS // (Tk * max(D, Dv))) // (B * Hq)
    Tq = 1 if choose.sometimes() else edge(choose, max(most, 1))
    shape = (B, Hq, Tq, Tk)
    inputs = {
        "q": choose.floats(B, Hq, Tq, D),
        "k": choose.plain(B, Hkv, Tk, D) * _slope(choose, Tk),
        "v": choose.plain(B, Hkv, Tk, Dv),
    }
    config: dict[str, Any] = {
        "block_q": choose.one_of([16, 1, 5, 64]),
        "block_k": choose.one_of([64, 16, 17, 256]),
    }
    config["splits"] = choose.integer(1, 5)
    _positions(choose, config, inputs, shape)
    _tables(choose, inputs, shape)
    if choose.rarely():
        inputs["sinks"] = choose.floats(Hq)
    if choose.rarely():
        config["softcap"] = choose.one_of([20.0, 0.5])
    if choose.rarely():
        config["scale"] = choose.one_of([0, 1, -0.5])
    if choose.maybe():
        poison_unseen(choose, config, inputs, shape)
    elif choose.rarely():
        name = choose.one_of(["v", "k", "q"])  # in what is perhaps seen: NaN must come through
        inputs[name] = choose.poisoned(inputs[name], NAN)
    return Draft("sdpa", "sdpa", inputs, config, want=("output", "lse"))


def edge(choose: Chooser, most: int, units: Sequence[int] = UNITS) -> int:
    """A length of at most `most` and at least 1: a few, or one below, at or above some tiles."""
    if choose.integer(0, 3) == 0:
        return choose.integer(1, min(most, 9))
    unit = choose.one_of([unit for unit in units if unit <= most + 1] or [1])
    tiles = choose.integer(1, max(min(most // unit, 4), 1))
    return max(min(unit * tiles + choose.one_of([0, -1, 1]), most), 1)


def tile(choose: Chooser, Tk: int) -> slice:
    """Some whole tiles of the keys: the first, the last, one or all of those between, all but the first or the last."""
    unit = choose.one_of([unit for unit in HIDDEN if 3 * unit <= Tk] or [1])
    last = -(-Tk // unit) - 1
    one = choose.integer(1, max(last - 1, 1))
    ends = [(0, 0), (one, one), (1, last - 1), (last, last), (1, last), (0, last - 1)]
    first, until = choose.one_of(ends)
    return slice(first * unit, (until + 1) * unit)


def _slope(choose: Chooser, Tk: int) -> np.ndarray:
    """(Tk, 1): how large the keys are, the same everywhere or growing or shrinking on the way."""
    low, high = choose.one_of([(1.0, 1.0), (0.25, 4.0), (4.0, 0.25)])
    return np.geomspace(low, high, Tk)[:, None]


def _positions(choose: Chooser, config: dict[str, Any], inputs: Tensors, shape: Shape) -> None:
    """causal, window, lengths, and where the queries stand."""
    B, _, Tq, Tk = shape
    places = [
        0,
        Tk - Tq,
        Tk // 2,
        -1,
        -(Tq // 2),
        Tk,
        *(n for unit in UNITS for n in (unit - 1, unit) if unit < Tk),
    ]
    if choose.maybe():
        config["causal"] = True
    if choose.sometimes():
        reach = [0, None, *(n for unit in UNITS for n in (unit - 1, unit, unit + 1) if unit <= Tk)]
        config["window"] = [choose.one_of(reach), choose.one_of(reach)]
    if "causal" in config or "window" in config:
        if choose.maybe():
            config["q_offset"] = choose.one_of(places)
        elif choose.maybe():
            inputs["q_offset"] = np.array([choose.one_of(places) for _ in range(B)], np.int64)
    if choose.sometimes():
        lengths = [Tk, 0, 1, Tk - 1, *(n for unit in UNITS for n in (unit - 1, unit, unit + 1) if n <= Tk)]
        inputs["kv_lengths"] = np.array([choose.one_of(lengths) for _ in range(B)], np.int64)


def _tables(choose: Chooser, inputs: Tensors, shape: Shape) -> None:
    """A mask and a bias that hide whole tiles, for all queries or for some."""
    B, Hq, Tq, Tk = shape
    shapes = [(Tk,), (Tq, Tk), (Hq, 1, Tk), (B, 1, Tq, Tk), (B, Hq, Tq, Tk)]
    tables = choose.one_of(["neither", "mask", "bias", "both"])
    if tables in ("mask", "both"):
        mask = (
            choose.flags(*choose.one_of(shapes)) if choose.maybe() else np.ones(choose.one_of(shapes), bool)
        )
        mask[..., tile(choose, Tk)] = False
        if mask.ndim > 1 and choose.maybe():
            mask[..., : choose.integer(1, mask.shape[-2]), :] = (
                True  # the first queries see all, others do not
            )
        inputs["mask"] = mask
    if tables in ("bias", "both"):
        bias = choose.plain(*choose.one_of([*shapes, (Tq, 1)]))
        if bias.shape[-1] == Tk:
            bias[..., tile(choose, Tk)] = -INF
        inputs["bias"] = bias


def unseen_keys(config: dict[str, Any], inputs: Tensors, shape: Shape) -> np.ndarray:
    """(B, Hkv, Tk): the keys that no query of their group sees, whatever their scores are."""
    B, Hq, Tq, Tk = shape
    Hkv = inputs["k"].shape[1]
    shown = np.zeros(shape, bool)
    for b, h, i in np.ndindex(B, Hq, Tq):
        shown[b, h, i] = visible_keys(config, inputs, b, h, i, shape)
    if "bias" in inputs:
        shown &= inputs["bias"] != -INF
    unseen: np.ndarray = np.all(~shown.reshape(B, Hkv, Hq // Hkv, Tq, Tk), axis=(2, 3))
    return unseen


def poison_unseen(choose: Chooser, config: dict[str, Any], inputs: Tensors, shape: Shape) -> None:
    """NaN or an infinity in the keys and values that nobody sees; a kernel that multiplies them by 0 shows it."""
    unseen = unseen_keys(config, inputs, shape)
    value = choose.one_of([NAN, INF, -INF])
    for name in choose.one_of([("k", "v"), ("v",), ("k",)]):
        inputs[name] = np.where(unseen[..., None], value, inputs[name])
