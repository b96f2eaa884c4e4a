"""The suite `kv_cache`: policies that choose which slots stay."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .cache_script import FEW, ONE, CacheScript, contiguous, per_head, quantised
from .draft import Draft

NAN, INF = np.nan, np.inf
ALL = ("f32", "f64", "f16", "bf16")
ROPE = {"base": 100.0}
ONES = np.ones((1, 1, 1, 1))


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _budgets()
    yield from _pool()
    yield from _ties()
    yield from _poison()
    yield from _exact_norm()
    yield from _rows()
    yield from _moves()


def tokens(name: str, keys: Any, values: Any = None, **options: Any) -> CacheScript:
    """One head with D = Dv = 1: these keys, and values 1, 2, 4, 8, … unless given; weights are tracked."""
    k = np.array(keys, float).reshape(1, 1, -1, 1)
    v = 2.0 ** np.arange(k.size) if values is None else np.array(values, float)
    return contiguous(f"policy/{name}", **ONE, track=True, **options).append(
        k.size, k=k, v=v.reshape(1, 1, -1, 1)
    )


def weighing(name: str, weights: Any, **options: Any) -> CacheScript:
    """Keys of which a query of 1 gives these weights, up to their sum."""
    return tokens(name, np.log(np.array(weights, float)), **options)


def _by_hand() -> Iterator[Draft]:
    window = tokens("window/by-hand", [1, 1, 1, 1, 1]).evict_by("window", 3, sinks=1).attend_uniform()
    window.append_values(32).attend_uniform(window=[1, 0]).read(positions=True)
    yield window.draft(
        "1, 8 and 16 stay: 25/3; the next stands at 5, and a window of 2 sees 4 and 5: 24",
        *("ByHand", "ProtectedSlots", "EvictedPositions"),
        dtypes=ALL,
    )
    heavy = weighing("heavy_hitters/by-hand", [8, 1, 4, 2]).attend(1, q=ONES, scale=1).read(tracked=True)
    heavy.evict_by("heavy_hitters", 2).attend_uniform().read(positions=True, tracked=True)
    yield heavy.draft(
        "weights 8/15, 1/15, 4/15, 2/15: values 1 and 4 stay, 2.5", "ByHand", "TrackedWeights", dtypes=ALL
    )
    summed = weighing("heavy_hitters/all-attends", [1, 4, 2]).attend(1, q=ONES, scale=1)
    summed.append(1, k=np.zeros(ONES.shape), v=8 * ONES).attend_uniform()
    yield (
        summed.read(tracked=True)
        .evict_by("heavy_hitters", 2)
        .attend_uniform()
        .read(positions=True)
        .draft(
            "1/7, 4/7, 2/7, and 1/4 more for each; of the last attend alone all have 1/4. 2 and 4 stay: 3",
            *("ByHand", "TrackedWeights"),
        )
    )
    snap = weighing("snapkv/by-hand", [1, 8, 2, 4]).evict_by("snapkv", 2, q=ONES, scale=1).attend_uniform()
    yield snap.read(positions=True, tracked=True).draft(
        "weights 1/15, 8/15, 2/15, 4/15: values 2 and 8 stay, 5; nothing was tracked before",
        *("ByHand", "ObservedWeights"),
        dtypes=ALL,
    )
    causal = weighing("snapkv/causal", [1, 2, 4, 16])
    causal.evict_by("snapkv", 1, q=np.array([1.0, 1, 0]).reshape(1, 1, 3, 1), scale=1)
    yield (
        causal.attend_uniform()
        .read(positions=True)
        .draft(
            "queries at 1, 2 and 3: only the last sees the last slot, and gives it 1/4; the second has the most. 2",
            *("ByHand", "ObservedWeights"),
        )
    )
    norm = tokens("key_norm/by-hand", [3, 1, -4, 2]).evict_by("key_norm", 2).attend_uniform()
    yield norm.read(positions=True).draft(
        "the smallest keys stay: 2 and 8, 5", "ByHand", "SmallKeysStay", dtypes=ALL
    )
    for policy, keys, want in (
        ("heavy_hitters", np.log([1.0, 2, 32, 16, 8, 4]), "1, 4 and 32: 37/3"),
        ("key_norm", [9.0, 3, 1, 2, 4, 5], "1, 4 and 32: 37/3"),
        ("snapkv", np.log([1.0, 2, 32, 16, 8, 4]), "1, 4 and 32: 37/3"),
    ):
        options: dict[str, Any] = {"q": ONES, "scale": 1} if policy == "snapkv" else {}
        both = tokens(f"{policy}/sinks-recent", keys).attend(1, q=ONES, scale=1)
        both.evict_by(policy, 3, sinks=1, recent=1, **options).attend_uniform().read(positions=True)
        yield both.draft(
            f"the first, the last, and the best between them. {want}", "ByHand", "ProtectedSlots"
        )
        full = tokens(f"{policy}/only-protected", keys).attend(1, q=ONES, scale=1)
        full.evict_by(policy, 3, sinks=2, recent=1, **options).attend_uniform().read(positions=True)
        yield full.draft("sinks and recent are the whole budget: 1, 2, 32", "ByHand", "ProtectedSlots")


def _budgets() -> Iterator[Draft]:
    """Five budgets around the four slots that there are; each on a fork of its own."""
    for policy, sinks in (("window", 0), ("window", 1), ("heavy_hitters", 0), ("snapkv", 0), ("key_norm", 0)):
        name = f"{policy}/budgets{'-sinks' if sinks else ''}"
        script = weighing(name, [2, 8, 16, 4]).attend(1, q=ONES, scale=1)
        for budget in (0, 1, 3, 4, 5, 2.0):
            fields: dict[str, Any] = {"sinks": sinks} if sinks else {}
            fields |= {"q": ONES, "scale": 1} if policy == "snapkv" else {}
            script.fork("b").evict_by(policy, budget, cache="b", **fields).read(cache="b", positions=True)
            script.attend_uniform(cache="b").append_values(100).on("b").attend_uniform(cache="b")
            script.read(cache="b", positions=True).stats(cache="b").drop("b")
        yield (
            script.once()
            .read(positions=True)
            .draft(
                "budgets of 0, 1, all but one, all, one more, and 2.0; what a fork forgets its origin keeps",
                *("ProtectedSlots", "EvictedPositions", "CacheAliasing"),
            )
        )
    nothing = contiguous("policy/nothing-held", track=True).evict_by("key_norm", 0).append(0)
    for policy in ("window", "heavy_hitters", "key_norm"):
        nothing.evict_by(policy, 1).evict_by(policy, 0, sinks=3)
    nothing.evict_by("snapkv", 0, q=np.zeros((2, 4, 1, 3))).append(2).attend(1).read(tracked=True)
    yield nothing.draft("of nothing nothing goes", "EmptyKeys", "EvictedPositions")
    none = contiguous("policy/no-rows", batch=0, track=True).append(2).attend(1)
    for policy in ("window", "heavy_hitters", "key_norm"):
        none.evict_by(policy, 1)
    none.evict_by("snapkv", 1, q=np.zeros((0, 4, 1, 3)))
    yield none.read(positions=True, tracked=True).draft("no rows", "EmptyKeys")


def _pool() -> Iterator[Draft]:
    weights = [64, 1, 2, 32, 4, 8, 16]
    pools: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("none", {"pool": 1}, "1, 8 and 64: 73/3"),
        ("three", {"pool": 3}, "slots 0 and 1 have 64, 2, 3 and 4 have 32: the first of these. 7/3"),
        ("three-sink", {"pool": 3, "sinks": 1}, "slot 1 does not see the sink's 64: 1, 4, 8. 13/3"),
        ("three-recent", {"pool": 3, "recent": 1}, "the last stays and lends nothing: 1, 2, 64. 67/3"),
        ("wide", {"pool": 99}, "a pool wider than the row: all have 64, the first three stay. 7/3"),
        ("wide-sinks", {"pool": 99, "sinks": 2, "recent": 1}, "budget and protected are equal: 1, 2, 64"),
    )
    for name, fields, want in pools:
        script = weighing(f"snapkv/pool/{name}", weights).evict_by("snapkv", 3, q=ONES, scale=1, **fields)
        yield (
            script.attend_uniform()
            .read(positions=True)
            .draft(want, "ByHand", "PooledScores", "ProtectedSlots")
        )
    five = weighing("snapkv/pool/five", [1, 2, 4, 32, 8, 16, 64]).evict_by(
        "snapkv", 3, q=ONES, pool=5, scale=1
    )
    yield (
        five.attend_uniform()
        .read(positions=True)
        .draft("two to either side: 4, 5 and 6 have 64. 112/3", "ByHand", "PooledScores")
    )


def _ties() -> Iterator[Draft]:
    """Equal in every port: never read, or read by queries of 0, or equal keys."""
    zero: dict[str, Any] = {"q": np.zeros((1, 1, 2, 1)), "pool": 3}
    for policy in ("heavy_hitters", "snapkv", "key_norm"):
        fields = zero if policy == "snapkv" else {}
        script = tokens(f"ties/{policy}", [1, -1, 1, -1]).evict_by(policy, 2, **fields).attend_uniform()
        yield script.read(positions=True).draft(
            "all are equal: the first two stay, 1.5; the last two would be 6",
            "ByHand",
            "EvictionTies",
            dtypes=ALL,
        )
    read = tokens("ties/tracked", [1, 1, 1, 1, 1]).attend_uniform(2, window=[3, None])
    read.evict_by("heavy_hitters", 2).attend_uniform().read(positions=True)
    yield read.draft("1/5 for the first, 9/20 for the others: 2 and 4 stay, 3", "ByHand", "EvictionTies")
    sinks = tokens("ties/sinks", [1, 1, 1, 1, 1]).attend_uniform()
    sinks.evict_by("heavy_hitters", 3, sinks=1, recent=1).attend_uniform().read(positions=True)
    yield sinks.draft(
        "of the three in the middle the first: 1, 2, 16", "ByHand", "EvictionTies", "ProtectedSlots"
    )


def _poison() -> Iterator[Draft]:
    for budget, want in ((2, "1 and 2"), (3, "3 as well"), (4, "the infinite one before those that are NaN")):
        norm = tokens(f"key_norm/poison-{budget}", [NAN, 3, 1, -INF, 2, -NAN]).evict_by("key_norm", budget)
        yield norm.read(positions=True).draft(
            f"NaN is below every number, also below -inf: {want} stay", "ByHand", "NanScore", dtypes=ALL
        )
    alike = tokens("key_norm/all-nan", [NAN, NAN, NAN]).evict_by("key_norm", 2).read(positions=True)
    yield alike.draft("all are NaN: the first two", "ByHand", "NanScore", "EvictionTies")
    seen = tokens("heavy_hitters/poison", [1, NAN, 1]).attend_uniform()  # a row of NaN
    seen.append_values(8, 16).attend_uniform(mask=np.array([1, 0, 1, 1, 1], bool)).read(tracked=True)
    seen.evict_by("heavy_hitters", 3).read(positions=True, tracked=True)
    yield seen.draft(
        "the first three were given NaN, and it stays so: 3 and 4, and the first of the others",
        *("ByHand", "NanScore", "TrackedWeights"),
    )
    snap = tokens("snapkv/poison", [1, 1, NAN, 1, 1])
    snap.evict_by("snapkv", 2, q=np.zeros((1, 1, 3, 1)), pool=3).read(positions=True)
    yield snap.draft("every query sees the NaN: all are NaN, the first two stay", "ByHand", "NanScore")


def _exact_norm() -> Iterator[Draft]:
    """Sums that differ with their order: 2^54 + 1 is 2^54, but 3 + 2^54 is 2^54 + 4."""
    large = 2.0**27
    for name, keys in (
        ("channels", [[1, 1, 1, large], [large, 1, 1, 1]]),
        ("channels-many", [[1] * 16 + [large], [large] + [1] * 16]),
    ):
        k = np.array(keys)[None, None]
        script = contiguous(f"policy/key_norm/order/{name}", batch=1, Hq=1, Hkv=1, D=k.shape[3], Dv=1)
        script.append(2, k=k, v=np.array([1.0, 2]).reshape(1, 1, 2, 1)).evict_by("key_norm", 1)
        yield script.attend_uniform().draft(
            "channel after channel the second is smaller; in pairs, or exactly, they are equal",
            *("ByHand", "SmallKeysStay", "SumOrder"),
        )
    heads = contiguous("policy/key_norm/order/heads", batch=1, Hq=4, Hkv=4, D=1, Dv=1)
    k = np.array([[1, large], [1, 1], [1, 1], [large, 1]]).reshape(1, 4, 2, 1)
    heads.append(2, k=k, v=np.ones((1, 4, 1, 1)) * np.array([1.0, 2]).reshape(1, 1, 2, 1))
    yield (
        heads.evict_by("key_norm", 1)
        .attend_uniform()
        .draft("head after head: 3 + 2^54 against 2^54 + 1 + 1 + 1, which stays", "ByHand", "SumOrder")
    )
    x = 1 + 17 * 2.0**-30  # its square ends a little above an odd number of 2^-52
    fused = contiguous("policy/key_norm/order/fused", batch=1, Hq=1, Hkv=1, D=2, Dv=1)
    fused.append(2, k=np.array([[1, x], [x, 1]])[None, None], v=np.array([1.0, 2]).reshape(1, 1, 2, 1))
    yield (
        fused.evict_by("key_norm", 1)
        .attend_uniform()
        .draft(
            "a tie, and the first stays: every square is rounded before it is added. Fused, the first is larger",
            *("ByHand", "SumOrder"),
            dtypes=("f64",),
        )
    )


def _rows() -> Iterator[Draft]:
    def evicting(name: str) -> Iterator[CacheScript]:
        yield contiguous(f"policy/rows/{name}/contiguous", **FEW, track=True)
        yield quantised(f"policy/rows/{name}/quantised", "int8", **FEW, track=True)
        yield per_head(f"policy/rows/{name}/per_head", **FEW, track=True)

    for policy in ("window", "heavy_hitters", "snapkv", "key_norm"):
        for script in evicting(policy):
            script.append(6, [6, 4], padding="left").attend(3, causal=True).append(2, [1, 0])
            script.attend(2, causal=True, window=[4, None])
            q = Draw(f"kv_cache/{script.name}/observed").normal(2, 4, 3, 3)
            observed: dict[str, Any] = {"q": q} if policy == "snapkv" else {}
            more = observed | ({"pool": 3} if policy == "snapkv" else {})
            more |= {} if policy == "window" else {"recent": 1}
            script.evict_by(policy, 4, sinks=1, **more).attend(2, causal=True)
            script.read(positions=True, tracked=True).append(2, [2, 1]).attend(2, causal=True).stats()
            script.evict_by(policy, 2, **observed)
            script.attend(1).read(positions=True, tracked=True)
            if script.kind["kind"] != "per_head":
                script.truncate(1, 2).append(1).attend(1).read(tracked=True)
            yield script.once().draft(
                "rows of their own lengths, padded, two query heads for each KV head",
                *("RowIndependence", "LeftPadding", "EvictedPositions"),
                dtypes=ALL if script.name.endswith("heavy_hitters/contiguous") else None,
            )
    grouped = contiguous("policy/rows/gqa", batch=1, Hq=4, Hkv=2, D=1, Dv=1, track=True)
    k = np.log(np.array([[[1.0], [4], [1]], [[1], [1], [2]]]))[None]
    grouped.append(3, k=k, v=np.array([1.0, 2, 4]).reshape(1, 1, 3, 1) * np.ones((1, 2, 1, 1)))
    q = np.array([1.0, 1, 1, 0]).reshape(1, 4, 1, 1)
    grouped.attend(1, q=q, scale=1).read(tracked=True).evict_by("heavy_hitters", 1).attend_uniform()
    yield grouped.read(positions=True).draft(
        "2/6, 8/6, 2/6 of heads 0 and 1; 1/4 + 1/3, 1/4 + 1/3, 2/4 + 1/3 of heads 2 and 3: slot 1",
        *("ByHand", "TrackedWeights", "GqaTile"),
    )


def _moves() -> Iterator[Draft]:
    """A window with sinks that moves on, as StreamingLLM has it: evict, then close the gap."""
    for name, kind in (("append", {}), ("attend", {"rope_at": "attend"})):
        for script in (
            contiguous(f"policy/moves/contiguous-{name}", batch=1, Hq=2, D=4, Dv=2, rope=ROPE, **kind),
            quantised(f"policy/moves/quantised-{name}", "int8", batch=1, Hq=2, D=4, Dv=2, rope=ROPE, **kind),
            per_head(f"policy/moves/per_head-{name}", batch=1, Hq=2, D=4, Dv=2, rope=ROPE, **kind),
        ):
            script.append(6).attend(2, causal=True)
            for _ in range(2):
                script.evict_by("window", 4, sinks=1).attend(1).shift(-2, 3).attend(1, causal=True)
                script.append(2).attend(2, causal=True).read(positions=True)
            yield script.once().draft(
                "keys turn with the positions that they move to", "ShiftTurns", "EvictedPositions"
            )
    for name, kind in (("append", {}), ("attend", {"rope_at": "attend"})):
        snap = contiguous(f"policy/moves/snapkv-{name}", **FEW, D=4, rope=ROPE, **kind).append(9, [9, 6])
        q = Draw(f"kv_cache/{snap.name}/observed").normal(2, 4, 2, 4)
        snap.evict_by("snapkv", 5, q=q, pool=3, sinks=1, recent=2).attend(2, causal=True).append(1)
        yield (
            snap.once()
            .attend(1, causal=True)
            .read(positions=True)
            .draft("queries turned to the last positions, as in an attend", "ObservedWeights", "RopePosition")
        )
