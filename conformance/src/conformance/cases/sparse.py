"""The suite `sparse`: every pattern, its mask and how many keys each query visits."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft

ALL = ("output", "lse", "mask", "visited")
HALF = ("f16", "bf16")
NAN = np.nan

Pattern = dict[str, Any]


def window(left: int, right: int) -> Pattern:
    """Keys from i - left to i + right."""
    return {"type": "window", "left": left, "right": right}


def dilated(left: int, right: int, dilation: int) -> Pattern:
    """Every so many keys of a window."""
    return {"type": "dilated", "left": left, "right": right, "dilation": dilation}


def strided(stride: int) -> Pattern:
    """The last `stride` keys, and every so many before."""
    return {"type": "strided", "stride": stride}


def fixed(stride: int, summary: int) -> Pattern:
    """The own block, and the last `summary` keys of each earlier one."""
    return {"type": "fixed", "stride": stride, "summary": summary}


def global_(left: int, right: int, tokens: list[int]) -> Pattern:
    """A window, and tokens that see and are seen by all."""
    return {"type": "global", "left": left, "right": right, "tokens": tokens}


def bigbird(block: int, window: int, count: int, random: int, seed: int) -> Pattern:
    """Blocks: those near, `count` global ones, and random ones."""
    return {
        "type": "bigbird",
        "block": block,
        "window": window,
        "global": count,
        "random": random,
        "seed": seed,
    }


def blocks(block: int) -> Pattern:
    """What the tensor block_mask shows."""
    return {"type": "blocks", "block": block}


PLAIN: dict[str, Pattern] = {
    "window/2-0": window(2, 0),
    "window/1-1": window(1, 1),
    "window/0-0": window(0, 0),
    "window/0-3": window(0, 3),
    "window/wide": window(50, 50),
    "dilated/2-2-3": dilated(2, 2, 3),
    "dilated/1-0-2": dilated(1, 0, 2),
    "dilated/2-1-1": dilated(2, 1, 1),
    "dilated/0-0-5": dilated(0, 0, 5),
    "strided/1": strided(1),
    "strided/3": strided(3),
    "strided/4": strided(4),
    "strided/64": strided(64),
    "fixed/4-1": fixed(4, 1),
    "fixed/3-2": fixed(3, 2),
    "fixed/5-0": fixed(5, 0),
    "fixed/2-2": fixed(2, 2),
    "global/first": global_(1, 1, [0]),
    "global/some": global_(0, 1, [2, 7]),
    "global/none": global_(1, 0, []),
    "global/beyond": global_(1, 0, [3, 100]),
    "bigbird/2-1-1-2": bigbird(2, 1, 1, 2, 7),
    "bigbird/3-0-0-1": bigbird(3, 0, 0, 1, 1),
    "bigbird/1-1-1-3": bigbird(1, 1, 1, 3, 2**53 - 1),
    "bigbird/2-0-2-0": bigbird(2, 0, 2, 0, 0),
    "bigbird/2-0-0-9": bigbird(2, 0, 0, 9, 5),
}
SEVEN: dict[str, Pattern] = {
    "window": window(1, 1),
    "dilated": dilated(1, 1, 2),
    "strided": strided(2),
    "fixed": fixed(3, 1),
    "global": global_(1, 0, [2]),
    "bigbird": bigbird(2, 0, 1, 1, 3),
    "blocks": blocks(2),
}


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _patterns()
    yield from _shapes()
    yield from _values()
    yield from _halves()


def sparse_inputs(
    name: str, pattern: Pattern, B: int, Hq: int, Hkv: int, Tq: int, Tk: int, D: int, Dv: int
) -> dict[str, Any]:
    """q, k, v, and for `blocks` the mask of the blocks."""
    draw = Draw(name)
    inputs: Tensors = {
        "q": 2 * draw.normal(B, Hq, Tq, D),
        "k": draw.normal(B, Hkv, Tk, D),
        "v": draw.normal(B, Hkv, Tk, Dv),
    }
    if pattern["type"] == "blocks":
        block = pattern["block"]
        inputs["block_mask"] = draw.choice(0.5, -(-Tq // block), -(-Tk // block))
    return inputs


def _case(
    name: str, inputs: dict[str, Any], pattern: Pattern, note: str, *flags: str, **config: Any
) -> Draft:
    return Draft(
        f"sparse/{name}",
        "sparse",
        inputs,
        {"pattern": pattern} | config,
        want=ALL,
        flags=flags,
        note=note,
        exact=("mask", "visited"),
    )


def _means(values: list[float], queries: int = 0) -> dict[str, Any]:
    """Queries of 0: every visible key weighs the same, and powers of 2 tell which were seen."""
    x = np.array(values, float).reshape(1, 1, -1, 1)
    return {"q": np.zeros((1, 1, queries or len(values), 1)), "k": np.ones(x.shape), "v": x}


def _by_hand() -> Iterator[Draft]:
    powers = [1.0, 2, 4, 8]
    yield _case(
        "by-hand/window",
        _means(powers),
        window(1, 0),
        "itself and one before: 1, 3/2, 3, 6",
        "ByHand",
        "WindowOffByOne",
    )
    yield _case(
        "by-hand/window-causal",
        _means(powers),
        window(1, 1),
        "the right side is cut: 1, 3/2, 3, 6",
        "WindowOffByOne",
        "MaskComposition",
        causal=True,
    )
    yield _case(
        "by-hand/dilated",
        _means(powers),
        dilated(1, 1, 2),
        "two steps away: 5/2, 5, 5/2, 5",
        "ByHand",
        "SparsePattern",
    )
    yield _case(
        "by-hand/strided",
        _means([1.0, 2, 4, 8, 16, 32]),
        strided(2),
        "i - 1, i, and every second: 1, 3/2, 7/3, 14/3, 29/4, 29/2",
        "ByHand",
        "SparsePattern",
    )
    yield _case(
        "by-hand/fixed",
        _means([1.0, 2, 4, 8, 16, 32]),
        fixed(2, 1),
        "the own block so far, and 1, 3 of those before: 1, 3/2, 3, 14/3, 26/3, 58/4",
        "ByHand",
        "SparsePattern",
    )
    yield _case(
        "by-hand/global",
        _means(powers),
        global_(0, 0, [1]),
        "row 1 sees all, all see 1: 3/2, 15/4, 3, 5",
        "ByHand",
        "SparsePattern",
    )
    yield _case(
        "by-hand/bigbird",
        _means(powers),
        bigbird(1, 0, 1, 0, 0),
        "no random block: 15/4, 3/2, 5/2, 9/2",
        "ByHand",
        "SparsePattern",
    )
    chosen = _means(powers) | {"block_mask": np.array([[False, True], [True, False]])}
    yield _case(
        "by-hand/blocks", chosen, blocks(2), "the other half: 6, 6, 3/2, 3/2", "ByHand", "SparsePattern"
    )
    yield _case(
        "by-hand/two-lengths",
        _means([1.0, 2, 4], 5),
        window(1, 0),
        "five queries, three keys: 1, 3/2, 3, 4, and a row without keys",
        "FullyMaskedRow",
        "CausalAlignment",
    )


def _patterns() -> Iterator[Draft]:
    for name, pattern in PLAIN.items():
        flag = "RandomBlocks" if name.startswith("bigbird") else "SparsePattern"
        inputs = sparse_inputs(f"sparse/pattern/{name}", pattern, 1, 2, 2, 11, 11, 3, 3)
        yield _case(f"pattern/{name}", inputs, pattern, "11 queries and keys: no multiple of any block", flag)
    for block, Tq, Tk in ((1, 5, 5), (2, 7, 7), (3, 6, 8), (4, 3, 9), (64, 5, 5)):
        name = f"blocks/{block}-{Tq}x{Tk}"
        inputs = sparse_inputs(f"sparse/pattern/{name}", blocks(block), 1, 2, 2, Tq, Tk, 3, 3)
        yield _case(
            f"pattern/{name}",
            inputs,
            blocks(block),
            "the last block is cut where the keys end",
            "SparsePattern",
        )
    for seed in (0, 1, 2, 3, 4294967296, 123456789012345):
        pattern = bigbird(1, 0, 1, 4, seed)
        inputs = sparse_inputs(f"sparse/seed/{seed}", pattern, 1, 1, 1, 17, 17, 2, 2)
        yield _case(
            f"seed/{seed}",
            inputs,
            pattern,
            "four of up to 15 blocks a row, by the seed alone",
            "RandomBlocks",
        )


def _shapes() -> Iterator[Draft]:
    for kind, pattern in SEVEN.items():
        for name, sizes, causal, flags in (
            ("causal", (1, 2, 2, 7, 7, 3, 3), True, ("MaskComposition",)),
            ("gqa", (2, 6, 2, 5, 5, 3, 4), False, ("GqaTile", "ValueDim")),
            ("more-queries", (1, 1, 1, 9, 4, 3, 3), False, ("FullyMaskedRow",)),
            ("more-keys", (1, 1, 1, 4, 9, 3, 3), True, ("CausalAlignment",)),
            ("one", (1, 1, 1, 1, 1, 2, 2), False, ("EmptyKeys",)),
            ("no-keys", (1, 2, 1, 3, 0, 2, 3), False, ("EmptyKeys",)),
            ("no-queries", (1, 2, 1, 0, 3, 2, 3), False, ("EmptyKeys",)),
        ):
            inputs = sparse_inputs(f"sparse/{name}/{kind}", pattern, *sizes)
            config = {"causal": True} if causal else {}
            yield _case(
                f"{name}/{kind}", inputs, pattern, f"{name.replace('-', ' ')}, {kind}", *flags, **config
            )
    long = window(16, 16)
    yield _case(
        "long",
        sparse_inputs("sparse/long", long, 1, 1, 1, 65, 65, 4, 4),
        long,
        "65 keys, 33 of them visited at most",
        "VectorTail",
    )
    scaled = strided(2)
    yield _case(
        "scale",
        sparse_inputs("sparse/scale", scaled, 1, 2, 1, 5, 5, 3, 3),
        scaled,
        "a scale of its own",
        "AbsentIsNotZero",
        scale=0.25,
    )
    yield _case(
        "scale-zero",
        sparse_inputs("sparse/scale-zero", scaled, 1, 2, 1, 5, 5, 3, 3),
        scaled,
        "scale 0: uniform weights",
        "AbsentIsNotZero",
        scale=0,
    )
    no_rows = window(1, 0)
    yield _case(
        "no-rows",
        sparse_inputs("sparse/no-rows", no_rows, 0, 2, 1, 3, 3, 2, 2),
        no_rows,
        "no rows: the mask is still there",
        "EmptyKeys",
    )


def _values() -> Iterator[Draft]:
    for kind in ("window", "strided", "bigbird", "blocks"):
        pattern = SEVEN[kind] | ({"random": 0} if kind == "bigbird" else {})
        inputs = sparse_inputs(f"sparse/poison/{kind}", pattern, 1, 1, 1, 6, 6, 3, 2)
        if kind == "blocks":
            inputs["block_mask"] = np.eye(3, dtype=bool)
        inputs["k"][0, 0, 5] = NAN
        inputs["v"][0, 0, 5] = NAN
        yield _case(f"poison/{kind}", inputs, pattern, "NaN in a key that few queries see", "HiddenPoison")
    all_hidden = sparse_inputs("sparse/hidden", blocks(2), 1, 2, 2, 5, 5, 3, 3) | {
        "block_mask": np.zeros((3, 3), bool)
    }
    yield _case(
        "hidden", all_hidden, blocks(2), "no block at all: zeros, lse -inf, nothing visited", "FullyMaskedRow"
    )


def _halves() -> Iterator[Draft]:
    for kind, pattern in SEVEN.items():
        inputs = sparse_inputs(f"sparse/half/{kind}", pattern, 1, 2, 1, 7, 7, 4, 3)
        draft = _case(f"half/{kind}", inputs, pattern, "scores and sums in f32, lse f32", "HalfInside")
        yield Draft(**{**vars(draft), "dtypes": HALF})
