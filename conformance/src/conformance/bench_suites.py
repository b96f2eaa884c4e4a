"""The cases that only `bench --full` and `bench --scaling` ask: made on the machine that times them, and kept there."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from . import cases
from .case import Case, Suite, encode_suite
from .cases import bench_grid
from .fixtures import CACHE, LoadedSuite, describe, load_folder
from .flags import NOTES
from .oracle import sdpa as oracle
from .questions import BENCH_FLAG
from .realise import realise, write_case

SOURCES = (bench_grid.__file__, cases.sdpa_sizes.__file__, oracle.__file__)


def load_bench_suite(
    name: str, say: Callable[[str], None] = print, folder: Path | None = None
) -> LoadedSuite:
    """`grid` or `scaling`. What is missing, or was made by other code, is made."""
    folder = folder or CACHE / f"bench-{name}"
    made_by = hashlib.sha256(b"".join(Path(source).read_bytes() for source in SOURCES)).hexdigest()
    mark = folder / "made-by"
    if not mark.exists() or mark.read_text() != made_by:
        mark.unlink(missing_ok=True)
        written: list[Case] = []
        shapes = bench_grid.SUITES[name]
        for shape, draft in zip(shapes, bench_grid.drafts(name), strict=True):
            say(f"making {draft.id} ({len(written) + 1} of {len(shapes)})")
            files = {"f32": write_case(folder, draft, "f32", *realise(draft, "f32"))}
            case = describe(draft, files)
            written.append(msgspec.structs.replace(case, flops=bench_grid.visible_flops(shape, case.flops)))
        suite = Suite(f"bench-{name}", 1, written, {BENCH_FLAG: NOTES[BENCH_FLAG]})
        (folder / "manifest.json").write_bytes(encode_suite(suite))
        mark.write_text(made_by)
    return load_folder(folder)
