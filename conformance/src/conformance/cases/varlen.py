"""The suite `varlen`: packed sequences."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other

BOTH = ("output", "lse")
Lengths = tuple[int, ...]


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _lengths()
    yield from _options()
    yield from _errors()


def packed(
    name: str, q_lengths: Lengths, k_lengths: Lengths, Hq: int = 2, Hkv: int = 2, D: int = 4, Dv: int = 3
) -> Tensors:
    """Random sequences of these lengths, one behind the other."""
    draw = Draw(f"varlen/{name}")
    ends_q, ends_k = (np.concatenate([[0], np.cumsum(n)]).astype(np.int64) for n in (q_lengths, k_lengths))
    return {
        "q": 2 * draw.normal(ends_q[-1], Hq, D),
        "k": draw.normal(ends_k[-1], Hkv, D),
        "v": draw.normal(ends_k[-1], Hkv, Dv),
        "cu_seqlens_q": ends_q,
        "cu_seqlens_k": ends_k,
    }


def _case(name: str, inputs: Any, note: str, *flags: str, **config: Any) -> Draft:
    dtypes = config.pop("dtypes", ("f32", "f64"))
    flags = ("SequenceLeak", *flags)
    return Draft(f"varlen/{name}", "varlen", inputs, config, BOTH, flags, note, dtypes=dtypes)


def _uniform(values: list[float], ends_q: list[int], ends_k: list[int]) -> Tensors:
    """Queries of 0, so each output is the mean of what is visible."""
    return {
        "q": np.zeros((ends_q[-1], 1, 1)),
        "k": np.ones((len(values), 1, 1)),
        "v": np.array(values, float).reshape(-1, 1, 1),
        "cu_seqlens_q": np.array(ends_q),
        "cu_seqlens_k": np.array(ends_k),
    }


def _by_hand() -> Iterator[Draft]:
    two = _uniform([1, 3, 100, 200, 300], [0, 2, 5], [0, 2, 5])
    yield _case("by-hand/two", two, "[2, 2] and [200, 200, 200]", "ByHand")
    yield _case("by-hand/causal", two, "[1, 2] and [100, 150, 200]", "ByHand", "CausalAlignment", causal=True)
    empty = _uniform([1, 3, 100], [0, 1, 2, 3], [0, 2, 2, 3])
    note = "the sequence in the middle has no keys: [2, 0, 100]"
    yield _case("by-hand/empty", empty, note, "ByHand", "EmptyKeys", "FullyMaskedRow")
    offset = _uniform([1, 3, 100, 200, 300], [0, 1, 2], [0, 2, 5]) | {"q_offset": np.array([1, 2])}
    note = "decode: each query stands at the end of its own sequence: [2, 200]"
    yield _case("by-hand/decode", offset, note, "ByHand", "CausalAlignment", causal=True)


def _lengths() -> Iterator[Draft]:
    for name, q_lengths, k_lengths in (
        ("one", (5,), (5,)),
        ("single-tokens", (1, 1, 1), (1, 1, 1)),
        ("mixed", (3, 1, 7, 2), (3, 1, 7, 2)),
        ("other-keys", (3, 1, 2), (5, 9, 1)),
        ("first-empty", (0, 3, 2), (0, 3, 2)),
        ("last-empty", (3, 2, 0), (3, 2, 0)),
        ("no-keys", (2, 3, 1), (4, 0, 2)),
        ("no-queries", (2, 0, 1), (4, 3, 2)),
        ("tiles", (15, 17, 1), (16, 33, 65)),
        ("many", (1, 2, 3, 4, 5, 6), (6, 5, 4, 3, 2, 1)),
        ("all-empty", (0, 0), (0, 0)),
        ("all-queries-empty", (0, 0), (3, 2)),
        ("nothing", (), ()),
    ):
        inputs = packed(f"lengths/{name}", q_lengths, k_lengths)
        flags = (
            ("EmptyKeys",)
            if 0 in (*q_lengths, *k_lengths, *q_lengths[:1]) or not q_lengths
            else ("AxisOrder",)
        )
        yield _case(f"lengths/{name}", inputs, f"queries {q_lengths}, keys {k_lengths}", *flags)


def _options() -> Iterator[Draft]:
    lengths = ((3, 1, 5), (4, 6, 5))
    inputs = packed("options", *lengths)
    yield _case("causal", inputs, "top-left in each sequence", "CausalAlignment", causal=True)
    yield _case("q-offset", inputs, "one offset for all", "CausalAlignment", causal=True, q_offset=1)
    rows = inputs | {"q_offset": np.array([1, 5, -2])}
    yield _case(
        "q-offset-tensor", rows, "an offset a sequence", "CausalAlignment", "RowIndependence", causal=True
    )
    yield _case("window", inputs, "a window stays in its sequence", "WindowOffByOne", window=[1, 1])
    yield _case("window-causal", rows, "and with offsets", "WindowOffByOne", causal=True, window=[2, None])
    yield _case("scale", inputs, "a scale of its own", "AbsentIsNotZero", scale=0.3)
    yield _case("scale-zero", inputs, "an explicit 0: uniform", "AbsentIsNotZero", scale=0)
    yield _case("softcap", inputs, "with a cap", "SoftcapOrder", softcap=0.8, causal=True)
    for Hq, Hkv in ((4, 2), (6, 1), (6, 3)):
        grouped = packed(f"gqa/{Hq}-{Hkv}", *lengths, Hq, Hkv)
        yield _case(f"gqa/{Hq}-{Hkv}", grouped, f"{Hq} query heads on {Hkv}", "GqaTile", causal=True)
    wide = packed("value-dim", *lengths, 2, 2, 5, 9)
    yield _case("value-dim", wide, "Dv = 9 beside D = 5", "ValueDim")
    poisoned = packed("poison", (2, 3, 2), (2, 3, 2))
    poisoned["k"][2:5], poisoned["v"][2:5] = np.nan, np.inf
    yield _case("poison", poisoned, "a broken sequence breaks no neighbour", "VisibleNaN", "RowIndependence")
    poisoned = packed("poison-causal", (3, 2), (3, 2))
    poisoned["v"][2] = np.nan
    yield _case(
        "poison-causal",
        poisoned,
        "NaN in a value that the last query alone sees",
        "HiddenPoison",
        causal=True,
    )
    halves: dict[str, Any] = {"dtypes": ("f16", "bf16")}
    yield _case("half/plain", inputs, "f32 inside, an lse of f32", "HalfInside", **halves)
    yield _case("half/causal", rows, "with offsets", "HalfInside", causal=True, **halves)
    long = packed("half/long", (9, 1), (33, 17), 4, 2, 16, 8)
    yield _case("half/long", long, "longer sums", "HalfInside", "GqaTile", **halves)
    no_keys = packed("half/no-keys", (2, 3), (4, 0))
    yield _case("half/no-keys", no_keys, "a sequence without keys", "HalfInside", "EmptyKeys", **halves)


def _errors() -> Iterator[Draft]:
    def refused(
        name: str, error: str, note: str, inputs: dict[str, Any] | None = None, **config: Any
    ) -> Draft:
        base: dict[str, Any] = dict(packed("error", (2, 3), (4, 1), 4, 2, 4, 5))
        base = {key: x for key, x in (base | (inputs or {})).items() if x is not None}
        return Draft(
            f"varlen/error/{name}", "varlen", base, config, flags=("ErrorCode",), note=note, error=error
        )

    zeros, ends = np.zeros, np.array
    shape, dtype, config = "shape_mismatch", "dtype_mismatch", "invalid_config"
    yield refused("rank", shape, "q of rank 4", {"q": zeros((1, 5, 4, 4))})
    yield refused("head-size", shape, "another head size in k", {"k": zeros((5, 2, 3))})
    yield refused("rows", shape, "fewer values than keys", {"v": zeros((4, 2, 5))})
    yield refused("groups", shape, "4 query heads on 3", {"k": zeros((5, 3, 4)), "v": zeros((5, 3, 5))})
    yield refused("heads-v", shape, "other heads in v", {"v": zeros((5, 1, 5))})
    yield refused(
        "sequences", shape, "two sequences of queries, three of keys", {"cu_seqlens_k": ends([0, 4, 4, 5])}
    )
    yield refused("ends-rank", shape, "boundaries of rank 2", {"cu_seqlens_q": ends([[0, 2, 5]])})
    yield refused("start", config, "the first sequence starts at 1", {"cu_seqlens_q": ends([1, 2, 5])})
    yield refused("falls", config, "boundaries that fall", {"cu_seqlens_k": ends([0, 6, 5])})
    yield refused("short", config, "one query left over", {"cu_seqlens_q": ends([0, 2, 4])})
    yield refused("long", config, "one query too few", {"cu_seqlens_q": ends([0, 2, 6])})
    yield refused("ends-float", dtype, "boundaries are whole", {"cu_seqlens_q": ends([0.0, 2.0, 5.0])})
    yield refused("dtype-k", dtype, "keys of another float type", {"k": Other(zeros((5, 2, 4)))})
    yield refused(
        "offsets", shape, "three offsets for two sequences", {"q_offset": ends([0, 0, 0])}, causal=True
    )
    yield refused("offsets-float", dtype, "offsets are whole", {"q_offset": ends([0.0, 1.0])}, causal=True)
    yield refused(
        "offset-twice", config, "an offset in config and as a tensor", {"q_offset": ends([0, 1])}, q_offset=1
    )
    yield refused("softcap", config, "softcap 0", softcap=0)
    yield refused("window", config, "a negative window", window=[-1, None])
    yield refused("causal", config, "true or false", causal=1)
    yield refused("missing", "invalid_request", "no boundaries", {"cu_seqlens_k": None})
