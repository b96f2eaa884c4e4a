"""The suite `kv_cache`: weights that are tracked, and keys that are rotated when they are attended to."""

from collections.abc import Iterator

import numpy as np

from ..inputs import Draw
from .cache_script import FEW, ONE, CacheScript, contiguous, paged, per_head, quantised, rotating
from .draft import Draft

ALL = ("f32", "f64", "f16", "bf16")
ROPE = {"base": 100.0}
UNIT = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _moves()
    yield from _conditions()
    yield from _rope_at()


def tracking(name: str) -> Iterator[CacheScript]:
    """A cache of each kind that tracks."""
    yield contiguous(f"track/{name}/contiguous", **FEW, track=True)
    yield quantised(f"track/{name}/quantised", "int8", **FEW, track=True)
    yield quantised(f"track/{name}/key_groups", "int8", **FEW, track=True, key_groups=2)
    yield per_head(f"track/{name}/per_head", **FEW, track=True)


def _by_hand() -> Iterator[Draft]:
    hand = contiguous("track/by-hand", **ONE, track=True).append_values(1, 2, 4).read(tracked=True)
    hand.attend_uniform(3, causal=True).read(tracked=True).append_values(8).attend_uniform()
    hand.read(tracked=True).evict(1).read(tracked=True, positions=True).append_values(16)
    yield hand.read(tracked=True).draft(
        "nothing; 11/6, 5/6, 1/3; 1/4 more for each of four; the second goes, and the next begins with 0",
        *("ByHand", "TrackedWeights"),
        dtypes=ALL,
    )
    heads = contiguous("track/heads", batch=1, Hq=4, Hkv=2, D=1, Dv=1, track=True)
    heads.append(2, k=np.ones((1, 2, 2, 1)), v=np.ones((1, 2, 2, 1)))
    heads.attend_uniform(2, mask=np.array([[1, 0], [1, 1], [1, 1], [0, 0]], bool)[None, :, None])
    yield heads.read(tracked=True).draft(
        "two queries of heads 0 and 1 give 3, 1 to head 0; of heads 2 and 3 1, 1 to head 1",
        *("ByHand", "TrackedWeights", "GqaTile"),
    )


def _moves() -> Iterator[Draft]:
    for script in tracking("moves"):
        script.append(5, [5, 3]).attend(2, causal=True).reorder(1, 0).read(tracked=True).fork("b")
        script.append(1).attend(1).read(tracked=True).read(cache="b", tracked=True).evict(1).on("b")
        script.attend(2, cache="b").read(cache="b", tracked=True, positions=True)
        yield (
            script.once()
            .read(tracked=True)
            .draft(
                "weights go where their slots go: rows doubled, a fork, a gap",
                "TrackedWeights",
                "BeamReorder",
            )
        )
    for script in tracking("saved"):
        script.append(4, [4, 2]).attend(2, causal=True).evict(1).save().append(1).attend(1)
        script.read(tracked=True).reset().read(tracked=True).load().read(tracked=True, positions=True)
        script.append(2, [0, 2]).attend(2).read(tracked=True).evict_by("heavy_hitters", 2)
        yield (
            script.once()
            .attend(1)
            .read(tracked=True, positions=True)
            .draft("saved, forgotten, loaded: with its weights", "TrackedWeights", "SavedState")
        )
    for script in tracking("cut"):
        if script.kind["kind"] == "per_head":
            continue
        script.append(5, [5, 4]).attend(2, causal=True).truncate(3, 1).read(tracked=True).append(2)
        script.read(tracked=True).attend(2, causal=True).read(tracked=True).shift(2, 1)
        yield (
            script.read(tracked=True, positions=True)
            .attend(1)
            .read(tracked=True)
            .draft(
                "what is cut off takes its weights along; new slots begin with 0",
                "TrackedWeights",
                "Rollback",
            )
        )


def _conditions() -> Iterator[Draft]:
    for script in tracking("conditions"):
        draw = Draw(f"kv_cache/{script.name}")
        script.append(5, [5, 2]).attend(2, causal=True, window=[2, None]).read(tracked=True)
        script.attend(2, softcap=0.8, scale=0.7).attend(1, bias=draw.normal(4, 1, 5)).read(tracked=True)
        script.attend(2, mask=draw.choice(0.6, 2, 1, 2, 5)).attend(0).attend(1, q_offset=1, causal=True)
        yield (
            script.once()
            .read(tracked=True)
            .draft("hidden slots are given 0", "TrackedWeights", "HiddenPoison")
        )
    failing = contiguous("track/failing", track=True).append(3).attend(1)
    failing.append_attend(1, 1, softcap=-1.0, code="invalid_config").attend(
        1, window=[-1, 0], code="invalid_config"
    )
    yield failing.read(tracked=True).draft(
        "an attend that fails gives nothing", "TrackedWeights", "NothingChanged", "ErrorCode"
    )
    for script in (contiguous("track/not-asked"), quantised("track/not-asked-quantised", "int8")):
        script.append(2).attend(1)
        script.steps.append({"do": "read", "out": "weights", "tracked": True})
        script.codes.append("invalid_config")
        yield script.read().attend(1).draft("a cache that does not track has none to read", "ErrorCode")


def _rope_at() -> Iterator[Draft]:
    def turned(name: str) -> CacheScript:
        kind = {"rope": {}, "rope_at": "attend"}
        return contiguous(f"rope-at/by-hand/{name}", batch=1, Hq=1, Hkv=1, D=2, Dv=1, **kind)

    decode = turned("decode")
    for value in (1.0, 2.0, 4.0):
        decode.append(1, k=UNIT, v=np.full((1, 1, 1, 1), value))
    yield (
        decode.attend(1, q=UNIT, scale=1)
        .read(positions=True)
        .draft(
            "scores cos 2, cos 1, 1: 2.937694, from keys that are held as they came",
            *("ByHand", "RopeAtAttend", "RopePosition"),
            dtypes=ALL,
        )
    )
    v = np.array([7.0, 1, 2, 4]).reshape(1, 1, 4, 1)
    gap = turned("gap").append(4, k=np.repeat(UNIT, 4, 2), v=v).evict(0).attend(1, q=UNIT, scale=1)
    yield gap.read(positions=True).draft(
        "positions 1, 2, 3 of a query at 3: 2.937694; turned by slot it would see cos 3, cos 2, cos 1",
        *("ByHand", "RopeAtAttend", "EvictedPositions"),
        dtypes=ALL,
    )
    moved = turned("shift").append(4, k=np.repeat(UNIT, 4, 2), v=v).evict(0).shift(-1, 1)
    moved.attend(1, q=UNIT, scale=1).read(positions=True).shift(5, 2).attend(1, q=UNIT, scale=1)
    yield moved.read(positions=True).draft(
        "moved to 0, 1, 2: 2.937694; then apart, which only positions know",
        *("ByHand", "RopeAtAttend", "ShiftTurns"),
        dtypes=ALL,
    )
    for script in (
        contiguous("rope-at/contiguous", **FEW, D=4, rope=ROPE, rope_at="attend"),
        contiguous("rope-at/append", **FEW, D=4, rope=ROPE, rope_at="append"),
        per_head("rope-at/per_head", **FEW, D=4, rope=ROPE, rope_at="attend"),
        rotating("rope-at/rotating", 3, 1, **FEW, D=4, rope=ROPE, rope_at="attend"),
        paged("rope-at/paged", 2, 20, **FEW, D=4, rope=ROPE, rope_at="attend"),
        quantised("rope-at/int8", "int8", **FEW, D=4, rope=ROPE, rope_at="attend"),
        quantised("rope-at/f16", "f16", **FEW, D=4, rope=ROPE, rope_at="attend"),
        quantised("rope-at/key_groups", "int4", **FEW, D=4, key_groups=2, rope=ROPE, rope_at="attend"),
    ):
        codes = script.kind["kind"] == "quantised"
        script.append(5, [5, 3]).attend(2, causal=True).append(2, [0, 2], padding="left")
        script.attend(2, causal=True).save().reorder(1, 0).append(1).attend(1).read(codes=codes)
        if script.kind["kind"] in ("contiguous", "quantised", "per_head"):
            script.evict(1, 2).attend(2, causal=True).shift(-1, 3).attend(2, causal=True)
        dtypes = ALL if script.name.endswith(("contiguous", "int8")) else None
        yield (
            script.once()
            .load()
            .append(1)
            .attend(2, causal=True)
            .read(positions=True)
            .draft(
                "held as they came, turned when they are attended to",
                "RopeAtAttend",
                "SavedState",
                dtypes=dtypes,
            )
        )
    for name, rope, D in (
        ("interleaved", {"interleaved": True}, 6),
        ("partial", {"rotary_dim": 4}, 6),
        ("linear", {"scaling": {"type": "linear", "factor": 4}}, 4),
        (
            "yarn",
            {"scaling": {"type": "yarn", "factor": 4.0, "original_length": 16, "attention_factor": 1.5}},
            8,
        ),
    ):
        script = contiguous(f"rope-at/options/{name}", Dv=2, D=D, rope=rope, rope_at="attend").append(4)
        script.once().attend(2, causal=True).append(1).evict(0).shift(-1, 1).attend(1)
        yield script.read(positions=True).draft("options of rope", "RopeAtAttend", "RopePairing")
