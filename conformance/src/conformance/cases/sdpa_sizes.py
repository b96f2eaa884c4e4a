"""sdpa cases over sizes: on both sides of every vector and tile width, 0 and 1, and heads in groups.

Each case has pairwise different sizes where it can, signed values, a row of large logits, and values in the last
channel and the last key that matter.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft

OUT, ALL = ("output",), ("output", "weights", "lse")


def random_inputs(name: str, B: int, Hq: int, Hkv: int, Tq: int, Tk: int, D: int, Dv: int) -> Tensors:
    """Signed inputs whose last query has large logits, and whose last channel and last key matter at every length."""
    draw = Draw(name)
    q, k, v = draw.normal(B, Hq, Tq, D), draw.normal(B, Hkv, Tk, D), draw.normal(B, Hkv, Tk, Dv)
    if Tq > 1:
        q[:, :, -1] *= 8
    if Tk > 1:
        k[:, :, -1, -1] += 2
        v[:, :, -1] += 3 + Tk / 4
    v[..., -1:] -= 2
    return {"q": q, "k": k, "v": v}


def _case(
    name: str, sizes: tuple[int, ...], note: str, *flags: str, want: tuple[str, ...] = OUT, **config: Any
) -> Draft:
    inputs = random_inputs(f"sdpa/{name}", *sizes)
    return Draft(f"sdpa/{name}", "sdpa", inputs, config, want=want, flags=flags, note=note)


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _head_sizes()
    yield from _lengths()
    yield from _groups()
    yield from _zeros_and_ones()
    yield from _larger()


def _head_sizes() -> Iterator[Draft]:
    for D in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 80, 96, 128):
        yield _case(
            f"head-size/{D}",
            (1, 2, 2, 3, 6, D, 5),
            f"D = {D}, weight in the last channel",
            "VectorTail",
            want=ALL,
        )
    for Dv in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65):
        yield _case(
            f"value-size/{Dv}", (1, 2, 2, 3, 6, 4, Dv), f"Dv = {Dv} beside D = 4", "VectorTail", "ValueDim"
        )


def _lengths() -> Iterator[Draft]:
    for Tk in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257):
        yield _case(
            f"kv-len/{Tk}",
            (1, 2, 1, 3, Tk, 8, 5),
            f"Tk = {Tk}, weight on the last key",
            "VectorTail",
            want=ALL,
        )
    for Tq in (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65):
        yield _case(
            f"q-len/{Tq}", (1, 2, 2, Tq, 6, 5, 3), f"Tq = {Tq}, large logits in the last query", "VectorTail"
        )
    for T in (7, 16, 17, 33, 64, 65):
        yield _case(
            f"causal-len/{T}",
            (1, 2, 2, T, T, 8, 5),
            f"causal over {T} positions",
            "VectorTail",
            "CausalAlignment",
            causal=True,
            want=ALL,
        )


def _groups() -> Iterator[Draft]:
    for Hq, Hkv in ((2, 1), (4, 2), (6, 2), (6, 3), (8, 1), (9, 3), (12, 4)):
        yield _case(
            f"gqa/{Hq}-{Hkv}",
            (2, Hq, Hkv, 3, 5, 8, 7),
            f"{Hq} query heads on {Hkv} KV heads",
            "GqaTile",
            want=ALL,
        )
    yield _case(
        "gqa/causal",
        (2, 6, 2, 5, 9, 8, 4),
        "groups with a causal mask",
        "GqaTile",
        "CausalAlignment",
        causal=True,
        q_offset=4,
    )
    yield _case(
        "gqa/decode",
        (3, 8, 2, 1, 33, 16, 16),
        "one query, eight heads, two KV heads",
        "GqaTile",
        "VectorTail",
        want=ALL,
    )
    inputs = random_inputs("sdpa/gqa/mask-per-head", 2, 6, 2, 3, 5, 4, 4)
    inputs["mask"] = Draw("sdpa/gqa/mask-per-head/mask").choice(0.6, 6, 3, 5)
    yield Draft(
        "sdpa/gqa/mask-per-head",
        "sdpa",
        inputs,
        {},
        ALL,
        ("GqaTile", "MaskBroadcast"),
        "masks of query heads, not of KV heads",
    )
    inputs = random_inputs("sdpa/gqa/sinks", 2, 6, 3, 3, 5, 4, 4)
    inputs["sinks"] = Draw("sdpa/gqa/sinks/sinks").normal(6)
    yield Draft(
        "sdpa/gqa/sinks",
        "sdpa",
        inputs,
        {},
        ALL,
        ("GqaTile", "Sink"),
        "a sink a query head",
    )


def _zeros_and_ones() -> Iterator[Draft]:
    for name, sizes in {
        "no-keys": (2, 3, 3, 4, 0, 5, 6),
        "no-queries": (2, 3, 3, 0, 4, 5, 6),
        "no-rows": (0, 3, 3, 4, 2, 5, 6),
        "nothing": (0, 2, 1, 0, 0, 3, 3),
        "no-values": (2, 2, 1, 3, 4, 5, 0),
    }.items():
        yield _case(
            f"empty/{name}",
            sizes,
            "sizes of 0 have results of the right shape; no key means output 0, lse -inf",
            "EmptyKeys",
            want=ALL,
        )
    yield _case(
        "empty/no-keys-causal",
        (1, 2, 1, 3, 0, 4, 4),
        "causal over no keys",
        "EmptyKeys",
        causal=True,
        want=ALL,
    )
    yield _case(
        "empty/no-keys-decode", (2, 4, 2, 1, 0, 4, 4), "decode on an empty cache", "EmptyKeys", want=ALL
    )
    yield _case(
        "one/everything", (1, 1, 1, 1, 1, 1, 1), "all sizes 1: the output is V", "EmptyKeys", want=ALL
    )
    yield _case("one/key", (2, 3, 1, 4, 1, 5, 6), "one key: weight 1", "EmptyKeys", want=ALL)
    yield _case("one/query", (2, 3, 3, 1, 5, 4, 6), "one query", "EmptyKeys", want=ALL)
    inputs = random_inputs("sdpa/empty/no-keys-sink", 1, 2, 2, 3, 0, 4, 5) | {"sinks": np.array([0.5, -0.25])}
    yield Draft(
        "sdpa/empty/no-keys-sink",
        "sdpa",
        inputs,
        {},
        ALL,
        ("EmptyKeys", "Sink"),
        "no keys, a sink: lse = sink",
    )


def _larger() -> Iterator[Draft]:
    """Beyond every tile; their files are generated, not committed."""
    yield _case("large/square", (1, 2, 2, 130, 130, 64, 64), "several tiles each way", "VectorTail")
    yield _case(
        "large/causal",
        (1, 2, 1, 200, 200, 48, 40),
        "several diagonal tiles",
        "VectorTail",
        "CausalAlignment",
        causal=True,
    )
    yield _case(
        "large/window",
        (1, 2, 2, 150, 150, 32, 32),
        "tiles that are all hidden on both sides",
        "VectorTail",
        "WindowOffByOne",
        window=[20, 3],
    )
    yield _case("large/decode", (2, 8, 2, 1, 1000, 64, 64), "a long past", "VectorTail", "GqaTile")
    yield _case("large/wide", (1, 1, 1, 5, 700, 256, 128), "a large head", "VectorTail")
