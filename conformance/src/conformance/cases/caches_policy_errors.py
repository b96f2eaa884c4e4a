"""The suite `kv_cache`: policies and configurations that are refused, and what must not change then."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .cache_script import FEW, CacheScript, contiguous, per_head, quantised
from .draft import Draft, Other

REQUEST, CONFIG, SHAPE, DTYPE = "invalid_request", "invalid_config", "shape_mismatch", "dtype_mismatch"


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _fields()
    yield from _observed()
    yield from _lists()
    yield from _configurations()


def refuse(script: CacheScript, code: str, **fields: Any) -> CacheScript:
    """An evict with these fields, which fails with the code."""
    script.steps.append({"do": "evict", **fields})
    script.codes.append(code)
    return script


def end(script: CacheScript, note: str) -> Draft:
    """What is held after the failures, and that the cache goes on."""
    script.once().read(positions=True, tracked=script.kind.get("track", False)).evict_by("window", 2).attend(
        1
    )
    return script.read(positions=True).draft(note, "ErrorCode", "NothingChanged")


def _fields() -> Iterator[Draft]:
    def held(name: str) -> CacheScript:
        return contiguous(f"policy/failure/{name}", track=True, **FEW).append(4, [4, 3]).attend(2)

    window: dict[str, Any] = {"type": "window", "budget": 2}
    norm: dict[str, Any] = {"type": "key_norm", "budget": 2}
    missing = held("missing")
    for policy in (
        {"budget": 2},
        {"type": "window"},
        {"type": None, "budget": 2},
        {"type": "window", "budget": None},
        {},
    ):
        refuse(missing, REQUEST, policy=policy)
    refuse(missing, REQUEST)
    refuse(missing, REQUEST, policy=None)
    yield end(missing, "no type, no budget, neither a policy nor positions")
    both = refuse(held("both"), CONFIG, policy=window, positions=[1])
    yield end(refuse(both, CONFIG, policy=window, positions=[]), "a policy and positions")
    kinds = held("kinds")
    for wrong in (2, "window", True, ["window"]):
        refuse(kinds, CONFIG, policy=wrong)
    yield end(kinds, "a policy that is no object")
    wrongs: dict[str, tuple[Any, ...]] = {
        "budget": (-1, 1.5, True, "2", {}, [2, 2]),
        "sinks": (-1, 0.5, True, "1", []),
        "recent": (-1, 0.5, False, "1", []),
    }
    for field, values in wrongs.items():
        script = held(field)
        for value in values:
            refuse(script, CONFIG, policy=norm | {field: value})
        yield end(script, f"{field}: below 0, a fraction, of another kind")
    too_many = held("protected")
    for policy in (
        window | {"sinks": 3},
        norm | {"sinks": 1, "recent": 2},
        norm | {"budget": 9, "recent": 10},
    ):
        refuse(too_many, CONFIG, policy=policy)
    yield end(too_many, "more sinks and recent ones than the budget, also where nothing would go")
    recent = refuse(held("recent-of-a-window"), CONFIG, policy=window | {"recent": 1})
    yield end(refuse(recent, CONFIG, policy=window | {"recent": 0}), "a window takes no recent, not even 0")
    for script in (
        contiguous("policy/failure/untracked", **FEW),
        quantised("policy/failure/untracked-int8", "int8", **FEW),
    ):
        script.append(3).attend(1)
        for budget in (2, 9, 0):
            refuse(script, CONFIG, policy={"type": "heavy_hitters", "budget": budget})
        yield end(script, "heavy hitters of weights that were not tracked")


def _observed() -> Iterator[Draft]:
    def held(name: str) -> CacheScript:
        return contiguous(f"policy/failure/snapkv-{name}", **FEW).append(4, [4, 3])

    z = np.zeros
    missing = refuse(held("missing"), REQUEST, policy={"type": "snapkv", "budget": 2})
    refuse(missing, REQUEST, policy={"type": "snapkv", "budget": 2, "q": "nobody"})
    yield end(missing, "no queries, or a name that stands for nothing")
    shapes = held("shapes")
    for shape in ((2, 4, 0, 3), (2, 4, 1, 2), (1, 4, 1, 3), (2, 3, 1, 3), (2, 4, 3)):
        shapes.evict_by("snapkv", 2, SHAPE, q=z(shape))
    yield end(shapes, "no query, other sizes, heads that are no multiple")
    other = held("dtype").evict_by("snapkv", 2, DTYPE, q=Other(z((2, 4, 1, 3))))
    other.evict_by("snapkv", 2, DTYPE, q=np.zeros((2, 4, 1, 3), np.int64))
    yield end(other, "queries of another type")
    pools = held("pool")
    for pool in (0, 2, -1, 1.5, True, "3", [3]):
        pools.evict_by("snapkv", 2, CONFIG, q=z((2, 4, 1, 3)), pool=pool)
    yield end(pools, "a pool that is even, below 1, a fraction, of another kind")
    scales = held("scale")
    for scale in ("1", True, [1]):
        scales.evict_by("snapkv", 2, CONFIG, q=z((2, 4, 1, 3)), scale=scale)
    yield end(scales, "a scale that is no number")


def _lists() -> Iterator[Draft]:
    script = per_head("policy/failure/list", **FEW).append(4, [4, 3])
    for budget, code in (
        *(([], SHAPE), ([2], SHAPE), ([2, 2, 2], SHAPE)),
        *(
            ([2, -1], CONFIG),
            ([2, 1.5], CONFIG),
            ([True, 2], CONFIG),
            ([2, None], CONFIG),
            ([[2], [2]], CONFIG),
        ),
    ):
        script.evict_by("key_norm", budget, code)
    script.evict_by("key_norm", [2, 1], CONFIG, sinks=1, recent=1).evict_by("heavy_hitters", 2, CONFIG)
    script.read(positions=True).evict_by("key_norm", [2, 0], sinks=1, recent=1)
    yield end(script, "a list with too few or too many budgets, or with one that is none")
    whole = per_head("policy/whole-numbers", **FEW).append(4, [4, 3]).evict_by("window", [2.0, 3], sinks=1.0)
    yield whole.read(positions=True).draft("2.0 is a whole number", "HeadBudgets")
    plain = quantised("policy/failure/list-int8", "int8", **FEW).append(3)
    yield end(plain.evict_by("window", [2, 2], CONFIG), "a list in a cache that chooses once for all heads")


def _configurations() -> Iterator[Draft]:
    """Bad configurations: an error of the whole call."""
    int8: dict[str, Any] = {"kind": "quantised", "format": "int8"}
    bad: tuple[tuple[str, dict[str, Any]], ...] = (
        ("rope-at-other", {"rope": {}, "rope_at": "never"}),
        ("rope-at-kind", {"rope": {}, "rope_at": True}),
        ("rope-at-alone", {"rope_at": "attend"}),
        ("rope-at-append-alone", {"rope_at": "append"}),
        ("rope-at-rotating", {"kind": "rotating", "window": 2, "rope_at": "attend"}),
        ("rope-at-paged", {"kind": "paged", "page_size": 2, "num_pages": 2, "rope": {}, "rope_at": "Attend"}),
        ("rope-offset", {"rope": {"offset": 1}}),
        ("rope-dynamic", {"rope": {"scaling": {"type": "dynamic", "factor": 2.0, "original_length": 4}}}),
        ("track-number", {"track": 1}),
        ("track-text", {"kind": "per_head", "track": "true"}),
        ("track-quantised", int8 | {"track": 0}),
        ("per-head-no-heads", {"kind": "per_head", "num_kv_heads": 0}),
        ("per-head-capacity", {"kind": "per_head", "capacity": -1}),
        ("key-groups-0", int8 | {"key_groups": 0}),
        ("key-groups-negative", int8 | {"key_groups": -2}),
        ("key-groups-fraction", int8 | {"key_groups": 1.5}),
        ("key-groups-kind", int8 | {"key_groups": True}),
        ("key-groups-list", int8 | {"key_groups": [2]}),
        *((f"key-groups-{f}", int8 | {"key_groups": 2, "format": f}) for f in ("f16", "bf16", "fp8_e4m3")),
    )
    for name, changes in bad:
        sizes = {"kind": "contiguous", "batch": 2, "num_kv_heads": 2, "head_dim": 4, "value_dim": 5}
        yield Draft(
            f"kv_cache/error/{name}",
            "kv_cache",
            {"k": Draw("kv_cache/error").normal(2, 2, 1, 3)},
            sizes | changes | {"steps": [{"do": "reset"}]},
            want=(),
            flags=("ErrorCode", "RopePosition") if "rope" in changes else ("ErrorCode",),
            note=f"a cache of {changes}",
            error=CONFIG,
        )
