"""Caches as they are timed, f32: every kind on the same tokens, and one token over a past that is there.

Kinds: a prefill of 256 and 32 tokens one by one, as `kv_cache/decode-32` of the suite `bench` has it, so that each is
compared with contiguous. LONG: what is held is written before the clock starts (`untimed`), and a call is one attend.
The past is one block of tokens again and again, so that the file of inputs stays small, and so that the answer is known
without the whole of it: what every key of a block has equally often changes no weighted mean.
"""

from collections.abc import Iterator
from typing import Any

from ..kv_cost import Format, slot_bytes
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

PASTS, BLOCK = (1024, 8192), 256  # of f32, keys and values are 8 and 64 MiB
LONG_SIZES: dict[str, Any] = {"batch": 1, "Hq": 32, "Hkv": 8, "D": 128, "Dv": 128}
LONG = ("f32", "paged", "f16", "bf16", "int8", "int4")
LONG_ID = "bench/long-"


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    for kind, script in _kinds():
        script.append(PREFILL)
        for _ in range(TOKENS):
            if kind != "cross":  # which is written once
                script.append(1)
            script.attend(1, lse=False)
        note = f"prefill of {PREFILL}, then {TOKENS} tokens one by one"
        yield _draft(script, f"bench/caches/{kind}", note, (f"out{TOKENS - 1}",))
    for past in PASTS:
        for kind in LONG:
            note = f"a past of {past} tokens, 32 heads on 8: one token"
            yield _draft(_long(kind, past), f"{LONG_ID}{past}/{kind}", note, ("out0",), timed=1)


def is_long(id: str) -> bool:
    """Whether a case is of LONG."""
    return id.startswith(LONG_ID)


def family(id: str) -> str:
    """Cases of one family are timed in the same rounds, so that they can be divided by each other."""
    return id.rpartition("/")[0] if is_long(id) else id


def judged(config: dict[str, Any]) -> dict[str, Any]:
    """The script that a long one is judged by, one block in place of all: the same answer within a tighter bound."""
    return config | {"steps": [config["steps"][0], config["steps"][-1]]}


def past_and_kind(id: str) -> tuple[int, str]:
    """What the name of a long case says."""
    past, _, kind = id.removeprefix(LONG_ID).partition("/")
    return int(past), kind


def held_bytes(id: str) -> int:
    """Of all that the one call of a long case reads."""
    past, kind = past_and_kind(id)
    kept = (LONG_SIZES["Hkv"], LONG_SIZES["D"], LONG_SIZES["Dv"])
    return past * slot_bytes(kept, Format("f32" if kind == "paged" else kind))


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


def _long(kind: str, past: int) -> CacheScript:
    if kind == "f32":
        script = contiguous("bench", **LONG_SIZES, capacity=past)
    elif kind == "paged":
        script = paged("bench", PAGE, past // PAGE, **LONG_SIZES)
    else:
        script = quantised("bench", kind, **LONG_SIZES, capacity=past)
    script.append(BLOCK)
    for _ in range(past // BLOCK - 1):
        script._step(dict(script.steps[0]), "ok")
    return script.attend(1, lse=False)


def _draft(script: CacheScript, id: str, note: str, want: tuple[str, ...], timed: int | None = None) -> Draft:
    """Without the replay after a reset. timed: how many of the last steps; None = all."""
    config = script.sizes() | {"steps": script.steps}
    if timed is not None:
        config["untimed"] = len(script.steps) - timed
    return Draft(
        id,
        "kv_cache",
        script.inputs,
        config,
        want=want,
        flags=("Bench",),
        note=note,
        steps=tuple(script.codes),
        dtypes=("f32",),
    )
