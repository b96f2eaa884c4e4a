"""Shapes that are timed beside those of the suite `bench`, and generated on the machine that times them: f32.

GRID: what attention kernels are usually compared on, and the sizes that do not divide evenly. Two heads stand for eight
where the sequence is long: heads are independent of each other, and the float64 answer takes a quarter of the time.
SCALING: one shape, ever longer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .draft import Draft
from .sdpa_sizes import random_inputs

PREFILL = (64, 128, 256, 512, 1024, 2048, 4096)
BATCH = (1, 2, 4, 8)
DECODE = (64, 256, 1024, 4096, 16384)
RAGGED = (512, 300, 17, 1)


@dataclass(frozen=True)
class Shape:
    """B, Hq, Hkv, Tq, Tk, D; lengths: how many keys each row of the batch has."""

    name: str
    sizes: tuple[int, int, int, int, int, int]
    note: str
    causal: bool = False
    lengths: tuple[int, ...] = ()


GRID = (
    Shape("prefill-512", (1, 8, 8, 512, 512, 64), "prefill of 512 tokens"),
    Shape("prefill-2048", (1, 2, 2, 2048, 2048, 64), "prefill of 2048 tokens"),
    Shape("prefill-2048-d128", (1, 2, 2, 2048, 2048, 128), "the same with heads of 128"),
    Shape("prefill-512-d80", (1, 8, 8, 512, 512, 80), "heads of 80: five registers of 16 lanes"),
    Shape("prefill-512-d96", (1, 8, 8, 512, 512, 96), "heads of 96: six registers of 16 lanes"),
    Shape("causal-512", (1, 8, 8, 512, 512, 64), "512 tokens, causal", causal=True),
    Shape("causal-2048", (1, 2, 2, 2048, 2048, 64), "2048 tokens, causal", causal=True),
    Shape("odd-1000", (1, 4, 4, 1000, 1000, 64), "a length that no tile divides"),
    Shape("keys-17", (1, 8, 8, 64, 17, 64), "17 keys: a register and one more"),
    Shape("keys-1", (1, 8, 8, 64, 1, 64), "a single key"),
    Shape("ragged", (4, 8, 8, 128, 512, 64), "a batch of 512, 300, 17 keys and one", lengths=RAGGED),
    Shape("decode-512", (1, 8, 8, 1, 512, 64), "one token, a past of 512"),
    Shape("decode-4096", (1, 32, 8, 1, 4096, 128), "one token, 32 heads on 8, a past of 4096"),
    Shape("decode-8x1024", (8, 32, 8, 1, 1024, 128), "eight sequences, one token each, a past of 1024"),
)
SCALING = (
    *(Shape(f"prefill/{n}", (1, 1, 1, n, n, 64), f"prefill of {n} tokens") for n in PREFILL),
    *(Shape(f"batch/{n}", (n, 4, 4, 128, 128, 64), f"a batch of {n}, 128 tokens each") for n in BATCH),
    *(Shape(f"decode/{n}", (1, 8, 2, 1, n, 64), f"one token, a past of {n}") for n in DECODE),
)
SUITES = {"grid": GRID, "scaling": SCALING}


def drafts(suite: str) -> Iterator[Draft]:
    """Every case of GRID or SCALING, in order."""
    for shape in SUITES[suite]:
        B, Hq, Hkv, Tq, Tk, D = shape.sizes
        name = f"{suite}/{shape.name}"
        inputs = random_inputs(f"bench/{name}", B, Hq, Hkv, Tq, Tk, D, D)
        if shape.lengths:
            inputs["kv_lengths"] = np.array(shape.lengths, np.int64)
        config = {"causal": True} if shape.causal else {}
        yield Draft(
            f"bench/{name}", "sdpa", inputs, config, flags=("Bench",), note=shape.note, dtypes=("f32",)
        )


def shape_of(id: str) -> Shape | None:
    """The shape that a case was made of; None where it is of no suite here."""
    _, suite, name = id.split("/", 2)
    return next((shape for shape in SUITES.get(suite, ()) if shape.name == name), None)


def visible_flops(shape: Shape, flops: int) -> int:
    """What a kernel has to do that reads no key beyond a row's length. flops: of all keys."""
    return flops * sum(shape.lengths) // (len(shape.lengths) * shape.sizes[4]) if shape.lengths else flops
