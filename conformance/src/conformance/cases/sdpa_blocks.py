"""sdpa cases for fast rungs: what the whole vectors and blocks of a kernel do, where smaller cases see only its tails.

Blocks are the kernel's own, of up to 256 keys: the gap of 320 keys holds a whole one of every power of two, with keys
before and behind it that count.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, score_form
from .sdpa_sizes import random_inputs

BOTH = ("output", "lse")
INF, NAN = np.inf, np.nan
KEYS, GAP = 600, slice(200, 520)


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _hidden()
    yield from _not_finite()
    yield from _maximum()
    yield from _tails()


def _case(name: str, inputs: Tensors, note: str, *flags: str, **config: Any) -> Draft:
    return Draft(f"sdpa/blocks/{name}", "sdpa", inputs, config, BOTH, flags, note)


def _gap(name: str) -> Tensors:
    """NaN and infinity in the keys and values of the gap."""
    inputs = random_inputs(f"sdpa/blocks/{name}", 1, 2, 1, 3, KEYS, 2, 1)
    inputs["k"][:, :, GAP], inputs["v"][:, :, GAP] = NAN, INF
    return inputs


def _hidden() -> Iterator[Draft]:
    """Whole blocks that nobody sees, not at the end but before keys that count."""
    flags = ("HiddenTile", "HiddenPoison")
    shown = np.ones(KEYS, bool)
    shown[GAP] = False
    note = "a mask hides 320 keys in the middle: the loop goes on behind them, and nothing of them is read"
    yield _case("hidden-middle", _gap("hidden-middle") | {"mask": shown}, note, *flags)
    bias = {"bias": np.where(shown, 0.5, -INF)}
    yield _case("hidden-middle-bias", _gap("hidden-middle-bias") | bias, "the same by a bias", *flags)
    first = _gap("hidden-first")
    first["k"][:, :, : GAP.stop], first["v"][:, :, : GAP.stop] = NAN, INF
    config = {"causal": True, "q_offset": KEYS - 3, "window": [60, None]}
    note = "a window hides all but the last 61 keys"
    yield _case("hidden-first", first, note, *flags, "WindowOffByOne", **config)
    rows = random_inputs("sdpa/blocks/hidden-by-row", 1, 2, 2, 21, 300, 4, 3)
    rows["mask"] = (np.arange(300) < 10) | (np.arange(300) >= 40 + 12 * np.arange(21)[:, None])
    rows["mask"][7] = False
    note = "each row goes on behind a gap of its own, one row is empty"
    yield _case("hidden-by-row", rows, note, "HiddenTile", "FullyMaskedRow")
    lengths = random_inputs("sdpa/blocks/lengths", 4, 2, 1, 2, 150, 2, 1)
    lengths["kv_lengths"] = np.array([129, 0, 64, 1])
    for row, length in enumerate(lengths["kv_lengths"]):
        lengths["k"][row, :, length:], lengths["v"][row, :, length:] = NAN, INF
    note = "rows that end in different blocks, and NaN behind their ends"
    yield _case("lengths", lengths, note, *flags, "RowIndependence")
    empty = random_inputs("sdpa/blocks/empty-queries", 1, 2, 1, 150, 40, 4, 2)
    note = "140 queries before the first key: whole blocks of empty rows"
    yield _case("empty-queries", empty, note, "FullyMaskedRow", "CausalAlignment", causal=True, q_offset=-140)


def _not_finite() -> Iterator[Draft]:
    """What is visible counts in whole vectors too, where a maximum or a clamp may swallow it."""
    key = random_inputs("sdpa/blocks/nan-key", 1, 2, 1, 40, 200, 2, 2)
    key["k"][:, :, 70, 1] = NAN
    note = "NaN in key 70, causal from position 50 on: the rows from 20 on are NaN, no other"
    yield _case("nan-key", key, note, "VisibleNaN", causal=True, q_offset=50)
    value = random_inputs("sdpa/blocks/nan-value", 1, 2, 1, 40, 200, 4, 35)
    value["v"][:, :, 70, 5] = NAN
    note = "NaN in channel 5 of value 70: that channel of the rows from 20 on"
    yield _case("nan-value", value, note, "VisibleNaN", causal=True, q_offset=50)
    infinite = random_inputs("sdpa/blocks/infinite-score", 1, 2, 1, 5, 200, 2, 3)
    infinite["bias"] = np.zeros((5, 200))
    infinite["bias"][3, 70] = INF
    note = "a score of +inf in a whole vector makes its row NaN"
    yield _case("infinite-score", infinite, note, "InfiniteScore")


def _maximum() -> Iterator[Draft]:
    """The running maximum, from block to block."""
    steps = np.repeat(np.arange(10), 60)  # 600 keys in ten steps
    rising = score_form(40.0 * steps, np.arange(KEYS) % 7)
    note = "each 60 keys outweigh all before them: the mean of the last 60 values, 178/60"
    yield _case("rising", rising, note, "Overflow", scale=1)
    falling = score_form(-40.0 * steps, np.arange(KEYS) % 7)
    note = "nothing adds to the first 60 keys: the mean of their values, 174/60"
    yield _case("falling", falling, note, "Overflow", scale=1)
    capped = random_inputs("sdpa/blocks/softcap", 1, 2, 1, 33, 150, 16, 16)
    capped["mask"] = Draw("sdpa/blocks/softcap/mask").choice(0.5, 33, 150)
    note = "a cap within whole vectors, before a mask"
    yield _case("softcap", capped, note, "SoftcapOrder", softcap=2.0)


def _tails() -> Iterator[Draft]:
    """A remainder in every direction at once, behind whole vectors and blocks."""
    for name, sizes, config in (
        ("plain", (1, 2, 1, 67, 131, 37, 29), {}),
        ("causal", (2, 4, 2, 71, 137, 19, 45), {"causal": True, "q_offset": 66}),
        ("decode", (2, 6, 2, 1, 273, 43, 51), {}),
        ("one-below", (1, 3, 3, 63, 127, 31, 47), {"causal": True, "q_offset": 64, "window": [70, None]}),
    ):
        inputs = random_inputs(f"sdpa/blocks/tails-{name}", *sizes)
        note = "Tq {3}, Tk {4}, D {5}, Dv {6}: no multiple of any width".format(*sizes)
        yield _case(f"tails-{name}", inputs, note, "VectorTail", "GqaTile", **config)
