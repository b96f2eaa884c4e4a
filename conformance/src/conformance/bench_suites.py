"""The cases that only `bench --full` and `bench --scaling` ask: made on the machine that times them, and kept there."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from . import cases
from .case import Case, Suite, encode_suite
from .cases import bench_caches, bench_grid
from .features.kv_cache import cache_flops
from .fixtures import CACHE, LoadedSuite, describe, load_folder
from .flags import NOTES
from .oracle import kv_cache as cache_oracle
from .oracle import quantise
from .oracle import sdpa as oracle
from .questions import BENCH_FLAG
from .realise import realise, write_case

SOURCES = {
    "caches": (bench_caches.__file__, cases.cache_script.__file__, cache_oracle.__file__, quantise.__file__),
    "grid": (bench_grid.__file__, cases.sdpa_sizes.__file__, oracle.__file__),
    "scaling": (bench_grid.__file__, cases.sdpa_sizes.__file__, oracle.__file__),
}


def load_bench_suite(
    name: str, say: Callable[[str], None] = print, folder: Path | None = None
) -> LoadedSuite:
    """`grid`, `caches` or `scaling`. What is missing, or was made by other code, is made."""
    folder = folder or CACHE / f"bench-{name}"
    made_by = hashlib.sha256(b"".join(Path(source).read_bytes() for source in SOURCES[name])).hexdigest()
    mark = folder / "made-by"
    if not mark.exists() or mark.read_text() != made_by:
        mark.unlink(missing_ok=True)
        written: list[Case] = []
        drafts = bench_caches.drafts() if name == "caches" else bench_grid.drafts(name)
        for draft in drafts:
            say(f"making {draft.id}")
            long = bench_caches.is_long(draft.id)
            answered = draft
            if long:
                answered = replace(draft, config=bench_caches.judged(draft.config), steps=("ok", "ok"))
            made = realise(answered, "f32")
            case = describe(answered, {"f32": write_case(folder, draft, "f32", *made)}, made)
            shape = bench_grid.shape_of(draft.id)
            if shape is not None:
                case = msgspec.structs.replace(case, flops=bench_grid.visible_flops(shape, case.flops))
            if long:  # a call reads what the cache holds, whatever it was written from
                steps, flops = list(draft.steps or ()), cache_flops(draft.config, draft.inputs, None)
                held = bench_caches.held_bytes(draft.id)
                case = msgspec.structs.replace(
                    case, config=draft.config, steps=steps, flops=flops, bytes=held
                )
            written.append(case)
        suite = Suite(f"bench-{name}", 1, written, {BENCH_FLAG: NOTES[BENCH_FLAG]})
        (folder / "manifest.json").write_bytes(encode_suite(suite))
        mark.write_text(made_by)
    return load_folder(folder)
