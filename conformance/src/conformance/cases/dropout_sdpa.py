"""The suite `dropout`, second part: the option of sdpa, in tiles and in splits too."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .draft import Draft, uniform_form
from .sdpa_sizes import random_inputs

ALL = ("output", "weights", "lse")
FLAGS = ("DropoutMask", "DropoutScale")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _options()
    yield from _halves()
    yield from _errors()


def _case(
    name: str, inputs: Any, note: str, *flags: str, p: float = 0.5, seed: int = 0, **config: Any
) -> Draft:
    dtypes = config.pop("dtypes", ("f32", "f64"))
    config["dropout"] = {"p": p, "seed": seed}
    return Draft(f"dropout/sdpa/{name}", "sdpa", inputs, config, ALL, (*FLAGS, *flags), note, dtypes=dtypes)


def _by_hand() -> Iterator[Draft]:
    four = uniform_form(1, [1, 2, 4, 8])
    yield _case(
        "by-hand/half", four, "key 0 dropped, the others doubled: 14/4 · 2 = 7; weights stay 1/4", "ByHand"
    )
    yield _case(
        "by-hand/second-row", uniform_form(2, [1, 2]), "words 0 and 1, then 2 and 3: [2, 3]", "ByHand"
    )
    yield _case("by-hand/nothing", four, "p = 0 is no dropout: 3.75", "ByHand", p=0)
    yield _case("by-hand/everything", four, "p = 1: output 0, weights and lse as without", "ByHand", p=1)
    causal = uniform_form(2, [3, 5])
    yield _case(
        "by-hand/hidden",
        causal,
        "hidden keys use up their numbers: [0, 8]",
        "ByHand",
        "MaskComposition",
        causal=True,
    )
    poisoned = four | {"k": np.array([np.nan, 1, 1, 1]).reshape(1, 1, 4, 1)}
    for p in (0.5, 1):
        yield _case(
            f"nan/row/{p}",
            poisoned,
            "a visible NaN makes its row NaN, whatever is dropped",
            "VisibleNaN",
            p=p,
        )
    poisoned = four | {"v": np.array([np.nan, 2, 4, 8]).reshape(1, 1, 4, 1)}
    yield _case(
        "nan/value", poisoned, "key 0 is seen, though dropped: 0 · NaN is NaN; without it 7", "VisibleNaN"
    )
    yield Draft(
        "dropout/sdpa/by-hand/none",
        "sdpa",
        four,
        {"dropout": None},
        ALL,
        (*FLAGS, "ByHand"),
        "null is absent: 3.75, every time",
    )


def _options() -> Iterator[Draft]:
    def inputs(name: str, *sizes: int) -> Any:
        return random_inputs(f"dropout/sdpa/{name}", *(sizes or (2, 4, 2, 5, 9, 6, 3)))

    yield _case(
        "gqa", inputs("gqa"), "numbered over query heads, not KV heads", "GqaTile", p=0.3, seed=2**40 + 1
    )
    yield _case(
        "causal", inputs("causal"), "numbered over all keys", "MaskComposition", p=0.4, seed=9, causal=True
    )
    masked = inputs("mask") | {"mask": Draw("dropout/sdpa/mask").choice(0.5, 5, 9)}
    yield _case("mask", masked, "with a mask", "MaskComposition", p=0.2, seed=3)
    lengths = inputs("lengths") | {"kv_lengths": np.array([0, 7])}
    yield _case(
        "lengths", lengths, "rows numbered by Tk, not by their lengths", "FullyMaskedRow", p=0.5, seed=4
    )
    sinks = inputs("sinks") | {"sinks": np.array([0.5, -1, 2, 0])}
    yield _case("sinks", sinks, "a sink is not dropped", "Sink", p=0.5, seed=5)
    biased = inputs("bias") | {"bias": Draw("dropout/sdpa/bias").normal(4, 5, 9)}
    yield _case("bias", biased, "with bias, softcap and window", p=0.25, seed=6, softcap=2.0, window=[4, 2])
    yield _case("most", inputs("most"), "rows that lose all", p=0.9, seed=7)
    for Tk in (1, 3, 15, 16, 17, 65):
        yield _case(
            f"kv-len/{Tk}",
            inputs(f"kv-len/{Tk}", 1, 2, 1, 3, Tk, 4, 4),
            "any number of keys",
            "VectorTail",
            seed=Tk,
        )
    for block_q, block_k, splits in ((1, 1, 9), (2, 3, 2), (4, 5, 3), (16, 4, 1)):
        yield _case(
            f"tiles/{block_q}-{block_k}-{splits}",
            inputs("tiles", 2, 2, 1, 7, 19, 4, 5),
            "the same elements in tiles of any size",
            "VectorTail",
            p=0.4,
            seed=8,
            block_q=block_q,
            block_k=block_k,
            splits=splits,
        )
    yield _case("empty/keys", inputs("empty/keys", 1, 2, 2, 3, 0, 4, 4), "no keys", "EmptyKeys")
    yield _case("empty/queries", inputs("empty/queries", 1, 2, 2, 0, 3, 4, 4), "no queries", "EmptyKeys")


def _halves() -> Iterator[Draft]:
    for p in (0.1, 0.5):
        inputs = random_inputs(f"dropout/sdpa/half/{p}", 1, 4, 2, 3, 17, 8, 5)
        note = "weights and factor stay in f32"
        yield _case(f"half/{p}", inputs, note, "HalfInside", p=p, seed=21, dtypes=("f16", "bf16"))


def _errors() -> Iterator[Draft]:
    def refused(name: str, note: str, dropout: Any) -> Draft:
        inputs = random_inputs("dropout/sdpa/error", 1, 2, 2, 3, 4, 5, 5)
        return Draft(
            f"dropout/sdpa/error/{name}",
            "sdpa",
            inputs,
            {"dropout": dropout},
            flags=("ErrorCode",),
            note=note,
            error="invalid_config",
        )

    yield refused("number", "dropout is p and a seed", 0.5)
    yield refused("p-missing", "no p", {"seed": 1})
    yield refused("seed-missing", "no seed", {"p": 0.5})
    yield refused("p-large", "more than all", {"p": 1.5, "seed": 1})
    yield refused("seed-negative", "seeds start at 0", {"p": 0.5, "seed": -1})
