"""Caches as they are timed, f32: every kind on the same tokens, and decode where only memory counts.

Kinds: a prefill of 256 and 32 tokens one by one, as `kv_cache/decode-32` of the suite `bench` has it, so that one is
compared with contiguous. LONG: a past beyond any cache of a processor, in a script that appends and attends once, and
in one that attends to it MORE times beside: what lies between the two is decode alone, whatever appending takes. The
past is one block of tokens again and again, so that the file of inputs stays small, and so that the answer is known
without the whole of it: what every key of a block has BLOCKS times changes no weighted mean.
"""

from collections.abc import Iterator
from typing import Any

from ..inputs import Draw
from .cache_script import (
    CacheScript,
    LatentScript,
    contiguous,
    cross,
    paged,
    per_head,
    quantised,
    rotating,
)
from .draft import Draft

PREFILL, TOKENS, PAGE, KEY_GROUP = 256, 32, 16, 32
SIZES: dict[str, Any] = {"batch": 1, "Hq": 8, "Hkv": 2, "D": 64, "Dv": 64}
FORMATS = ("f16", "bf16", "int8", "int4", "fp8_e4m3")

BLOCK, BLOCKS, MORE = 256, 144, 64
LONG_SIZES: dict[str, Any] = {"batch": 1, "Hq": 32, "Hkv": 8, "D": 128, "Dv": 128}
LONG = ("f32", "f16", "int8", "int4")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    for kind, script in _kinds():
        script.append(PREFILL)
        for _ in range(TOKENS):
            if kind != "cross":  # which is written once
                script.append(1)
            script.attend(1, lse=False)
        yield _draft(
            script, f"caches/{kind}", f"prefill of {PREFILL}, then {TOKENS} tokens one by one", TOKENS
        )
    for format in LONG:
        for what, more in (("append", 0), ("decode", MORE)):
            yield _draft(_long(format, more), f"long/{format}/{what}", _say(more), 1 + more)


def _kinds() -> Iterator[tuple[str, CacheScript]]:
    tokens = PREFILL + TOKENS
    yield "contiguous", contiguous("bench", **SIZES, capacity=tokens)
    yield "growing", contiguous("bench", **SIZES)
    yield "rotating", rotating("bench", PREFILL, 4, **SIZES)
    yield "paged", paged("bench", PAGE, tokens // PAGE, **SIZES)
    for format in FORMATS:
        yield format, quantised("bench", format, **SIZES, capacity=tokens)
    for format in ("int8", "int4"):
        by_channel = quantised("bench", format, key_groups=KEY_GROUP, **SIZES, capacity=tokens)
        yield f"{format}-key-groups", by_channel
    yield "per-head", per_head("bench", **SIZES, capacity=tokens)
    yield "latent", LatentScript("bench", 64, 32, batch=1, H=8, capacity=tokens)
    yield "cross", cross("bench", **SIZES)


def _long(format: str, more: int) -> CacheScript:
    sizes = LONG_SIZES | {"capacity": BLOCK * BLOCKS}
    script = contiguous("bench", **sizes) if format == "f32" else quantised("bench", format, **sizes)
    draw = Draw("bench/long")
    k, v = draw.normal(1, 8, BLOCK, 128), draw.normal(1, 8, BLOCK, 128)
    script.append(BLOCK, k=k, v=v)
    for _ in range(BLOCKS - 1):
        script._step(dict(script.steps[0]), "ok")
    script.attend(1, q=draw.normal(1, 32, 1, 128), lse=False)
    for number in range(1, 1 + more):
        script._step(script.steps[BLOCKS] | {"out": f"out{number}"}, "ok")
    return script


def judged(config: dict[str, Any]) -> dict[str, Any]:
    """The script that a long one is judged by, one block in place of all: the same answer within a tighter bound."""
    append, attend = config["steps"][0], config["steps"][-1]
    return config | {"steps": [append, attend]}


def is_long(id: str) -> bool:
    """Whether a case is of LONG."""
    return id.startswith("bench/long/")


def _say(more: int) -> str:
    past = f"a past of {BLOCK * BLOCKS}, 32 heads on 8"
    return f"{past}, and {1 + more} tokens" if more else f"{past}, written and attended to once"


def _draft(script: CacheScript, name: str, note: str, attends: int) -> Draft:
    """Without the replay after a reset; of the outputs only the last one is written."""
    config = script.sizes() | {"steps": script.steps}
    return Draft(
        f"bench/{name}",
        "kv_cache",
        script.inputs,
        config,
        want=(f"out{attends - 1}",),
        flags=("Bench",),
        note=note,
        steps=tuple(script.codes),
        dtypes=("f32",),
    )
