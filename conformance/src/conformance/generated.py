"""Suites that are made from an installed package where they are used, and never committed.

A suite lies in a folder of the cache, with a stamp that says what it was made from: the package and the code. It is
made again only when that has changed.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec

from . import case, features, flags, oracle, realise, tensors
from .case import Case, Published, Suite, encode_suite
from .cases.draft import Draft
from .tensors import Tensors, write_tensors

# What decides about the contents of any such suite.
COMMON_CODE = (
    *(Path(str(module.__file__)) for module in (case, realise, tensors)),
    *sorted(Path(str(flags.__file__)).parent.glob("flags*.py")),
    *(
        path
        for module in (oracle, features)
        for path in sorted(Path(str(module.__file__)).parent.glob("*.py"))
    ),
    Path(__file__),
)


def ensure_made(folder: Path, origin: str, build: Callable[[Path], object]) -> Path:
    """The folder, with a suite of that origin in it; `build` writes one into an empty folder."""
    stamp = folder / "stamp.json"
    if not (stamp.is_file() and (folder / "manifest.json").is_file() and stamp.read_text() == origin):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as new:
            made = Path(new, folder.name)
            build(made)
            (made / stamp.name).write_text(origin)
            shutil.rmtree(folder, ignore_errors=True)
            try:
                made.rename(folder)
            except OSError:  # another run was quicker
                if not (stamp.is_file() and stamp.read_text() == origin):
                    raise
    return folder


def hash_code(*sources: ModuleType | Path) -> str:
    """A hash of these sources, and of what every such suite depends on."""
    own = [source if isinstance(source, Path) else Path(str(source.__file__)) for source in sources]
    paths = [*COMMON_CODE, *own]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def write_manifest(
    folder: Path, name: str, version: int, cases: list[Case], left_out: dict[str, str] | None = None
) -> Suite:
    """The manifest of cases whose files are there."""
    used = sorted({flag for made in cases for flag in made.flags})
    suite = Suite(name, version, cases, {flag: flags.NOTES[flag] for flag in used}, left_out or {})
    (folder / "manifest.json").write_bytes(encode_suite(suite))
    return suite


def write_draft(
    folder: Path, draft: Draft, published: Published | None = None, answers: Tensors | None = None
) -> Case:
    """Writes the files of a case in its one type, and returns its entry.

    answers: what `published` has for the same question.
    """
    (dtype,) = draft.dtypes
    inputs, expected = realise.realise(draft, dtype)
    assert expected is not None
    files = realise.write_case(folder, draft, dtype, inputs, expected)
    if answers is not None:
        name = files.inputs.replace(".in.safetensors", ".published.safetensors")
        sums = {**files.sha256, "published": write_tensors(folder / name, answers)}
        files = msgspec.structs.replace(files, published=name, sha256=sums)
    flops, moved = features.cost(draft.op, draft.config, inputs, expected, draft.steps)
    return Case(
        id=draft.id,
        op=draft.op,
        config=draft.config,
        files={dtype: files},
        want=list(draft.want),
        features=features.features(draft.op, draft.config, inputs, draft.want),
        flags=list(draft.flags),
        note=draft.note,
        steps=None if draft.steps is None else list(draft.steps),
        exact=list(draft.exact),
        shapes={name: list(x.shape) for name, x in inputs.items()},
        flops=flops,
        bytes=moved,
        published=published,
    )


def name_origin(**parts: str) -> str:
    """What a suite is made from, as its stamp says it."""
    return msgspec.json.encode(dict(sorted(parts.items()))).decode()
