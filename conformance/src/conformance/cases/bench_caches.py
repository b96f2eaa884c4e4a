"""Every kind of cache as it is timed, f32, on the same tokens: a prefill of 256 and 32 tokens one by one.

As `kv_cache/decode-32` of the suite `bench` has it, so that each is compared with contiguous.
"""

from collections.abc import Iterator
from typing import Any

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


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    for kind, script in _kinds():
        script.append(PREFILL)
        for _ in range(TOKENS):
            if kind != "cross":  # which is written once
                script.append(1)
            script.attend(1, lse=False)
        yield _draft(script, kind)


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


def _draft(script: CacheScript, kind: str) -> Draft:
    """Without the replay after a reset; of the outputs only the last one is written."""
    config = script.sizes() | {"steps": script.steps}
    return Draft(
        f"bench/caches/{kind}",
        "kv_cache",
        script.inputs,
        config,
        want=(f"out{TOKENS - 1}",),
        flags=("Bench",),
        note=f"prefill of {PREFILL}, then {TOKENS} tokens one by one",
        steps=tuple(script.codes),
        dtypes=("f32",),
    )
