"""The suite `kv_cache`: caches of which every KV head holds slots of its own."""

from collections.abc import Iterator

import numpy as np

from ..inputs import Draw
from .cache_script import FEW, CacheScript, per_head
from .draft import Draft, Other

ALL = ("f32", "f64", "f16", "bf16")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _steps()
    yield from _failures()


def two_heads(name: str) -> CacheScript:
    """Two heads with D = Dv = 1: other keys, so that each keeps others; values 1, 2, 4, 8 and 16, 32, 64, 128."""
    script = per_head(f"per_head/{name}", batch=1, Hq=2, Hkv=2, D=1, Dv=1, track=True)
    k = np.array([[3.0, 1, 4, 2], [1, 4, 2, 3]]).reshape(1, 2, 4, 1)
    return script.append(4, k=k, v=2.0 ** np.arange(8).reshape(1, 2, 4, 1))


def _by_hand() -> Iterator[Draft]:
    own = two_heads("by-hand/own").evict_by("key_norm", 2).attend_uniform().read(positions=True)
    yield own.draft(
        "head 0 keeps 2 and 8, head 1 16 and 64: 5 and 40; together they would keep the first and the last",
        *("ByHand", "HeadBudgets"),
        dtypes=ALL,
    )
    for name, budgets, want in (
        ("list", [1, 3], "2 alone, and 16, 64, 128: 2 and 208/3"),
        ("dropped", [0, 4], "head 0 has nothing: 0 and lse -inf; head 1 is as it was, 60"),
        ("more", [9, 2], "3.75 and 40"),
    ):
        script = (
            two_heads(f"by-hand/{name}").evict_by("key_norm", budgets).attend_uniform().read(positions=True)
        )
        script.stats().append(1, k=np.ones((1, 2, 1, 1)), v=np.full((1, 2, 1, 1), 300.0))
        script.attend_uniform(window=[2, 0]).attend_uniform().stats()
        yield script.read(positions=True, tracked=True).draft(
            f"{want}; the next stands at 4 in both", "ByHand", "HeadBudgets", "FullyMaskedRow", dtypes=ALL
        )
    zero = two_heads("by-hand/zero-and-sinks").evict_by("window", [0, 2], sinks=1).attend_uniform()
    yield zero.read(positions=True).draft(
        "a budget of 0 goes with any sinks: 0, and 16 and 128: 72", "ByHand", "HeadBudgets", "ProtectedSlots"
    )
    masked = two_heads("by-hand/mask").evict_by("key_norm", [1, 3])
    masked.attend_uniform(mask=np.array([[1, 0, 0], [0, 1, 1]], bool)[:, None])
    yield masked.draft(
        "a mask over three slots, of which head 0 has one: 2, and (64 + 128)/2", "ByHand", "HeadBudgets"
    )


def _steps() -> Iterator[Draft]:
    script = per_head("per_head/steps", **FEW, track=True).append(5, [5, 3]).attend(2, causal=True)
    script.evict_by("heavy_hitters", [2, 3], recent=1).attend(2).append(2, [2, 1], padding="left")
    draw = Draw("kv_cache/per_head/steps")
    script.attend(2, causal=True, bias=draw.normal(4, 2, 5)).reorder(1, 0).read(positions=True, tracked=True)
    script.attend(2, causal=True, q_offset=np.array([3, 2])).fork("b").evict_by("window", [4, 0], cache="b")
    script.read(cache="b", positions=True).append_attend(2, 1, lengths=[1, 2]).save().reset().append(1)
    script.attend(1).load().attend(2, causal=True, window=[3, None]).stats().append(1).on("b")
    yield (
        script.once()
        .attend(1, cache="b")
        .read(positions=True, tracked=True)
        .draft(
            "all steps; each head has a length of its own",
            "HeadBudgets",
            "SavedState",
            "RowIndependence",
            dtypes=ALL,
        )
    )
    both = per_head("per_head/append-attend-mask", **FEW).once().append(3).evict_by("window", [1, 3])
    both.append_attend(2, 2, mask=draw.choice(0.7, 4, 1, 5), causal=True)
    both.append_attend(1, 1, mask=np.ones((4, 1, 5), bool), code="shape_mismatch")
    yield both.read(positions=True).draft(
        "a mask over what is held after the append", "HeadBudgets", "MaskBroadcast", "NothingChanged"
    )
    gone = (
        per_head("per_head/evict-shift", **FEW).once().append(5, [5, 4]).evict_by("key_norm", [2, 4], sinks=1)
    )
    gone.evict(2, 9).read(positions=True).shift(3, 1).read(positions=True).append(1).attend(2, causal=True)
    yield gone.read(positions=True).draft("by position in all heads", "EvictedPositions", "HeadBudgets")
    apart = per_head("per_head/shift-collides", batch=1, Hq=2, Hkv=2, D=1, Dv=1)
    k = np.array([[1.0, 3, 3, 1], [3, 1, 3, 1]]).reshape(1, 2, 4, 1)
    apart.append(4, k=k, v=k).evict_by("key_norm", [2, 2]).shift(-2, 3, code="invalid_config")
    apart.read(positions=True).shift(-1, 3)
    yield apart.read(positions=True).draft(
        "to 1, which head 1 still holds: neither head moves", "NothingChanged", "ErrorCode", "HeadBudgets"
    )
    full = per_head("per_head/capacity", capacity=4).append(4).append(1, code="capacity_exceeded")
    full.evict_by("key_norm", [2, 4]).append(1, code="capacity_exceeded").evict_by("window", 3).append(1)
    yield full.attend(1).read(positions=True).draft("every head must have room", "Capacity", "HeadBudgets")
    for options in ({"batch": 0}, {"batch": 2}):
        empty = per_head(f"per_head/empty-{options['batch']}", track=True, **options).append(0).attend(2)
        empty.evict_by("window", [0, 1]).read(positions=True, tracked=True).stats().append(1).attend(1)
        yield empty.read().draft("nothing held, or no rows", "EmptyKeys", "FullyMaskedRow")
    turned = per_head("per_head/rope", **FEW, D=4, rope={"base": 100.0}).append(5, [5, 3])
    turned.evict_by("window", [2, 3], sinks=1).attend(2, causal=True).shift(-1, 3).append(1)
    yield (
        turned.attend(2, causal=True)
        .read(positions=True)
        .draft("keys turned at their own positions", "RopePosition", "ShiftTurns", "HeadBudgets")
    )


def _failures() -> Iterator[Draft]:
    z = np.zeros
    script = per_head("per_head/failure/shapes").append(3)
    script.append(1, k=z((2, 1, 1, 3)), code="shape_mismatch").append(
        1, k=z((1, 2, 1, 3)), code="shape_mismatch"
    )
    script.append(1, v=z((2, 2, 1, 4)), code="shape_mismatch").append(
        1, k=Other(z((2, 2, 1, 3))), code="dtype_mismatch"
    )
    script.attend(1, q=z((2, 3, 1, 3)), code="shape_mismatch").attend(
        1, q=z((2, 4, 3)), code="shape_mismatch"
    )
    script.attend(1, mask=np.ones(4, bool), code="shape_mismatch")
    script.attend(1, q=Other(z((2, 4, 1, 3))), code="dtype_mismatch")
    script.append(1, [1, 2], code="invalid_config").reorder(0, 2, code="invalid_config")
    yield script.read().attend(1).draft("arrays that do not fit", "NothingChanged", "ErrorCode")
