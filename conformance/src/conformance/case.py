"""What a case is, and the manifest of a suite.

One description serves conformance, benchmark and page: a case knows its op, config, what it catches, its files, and
what it costs. `docs/fixtures.md` describes the format for people who bring suites of their own.
"""

from pathlib import Path
from typing import Any

import msgspec


class Note(msgspec.Struct, frozen=True):
    """What a flag means: the bug that its cases catch, what harm that bug does, and where it was seen."""

    bug: str
    effect: str
    link: str | None = None


class Published(msgspec.Struct, frozen=True):
    """Whose answers stand beside ours, and how near they ask one to come: |x - theirs| <= atol + rtol |theirs|."""

    source: str
    rtol: float
    atol: float


class Files(msgspec.Struct, frozen=True, omit_defaults=True):
    """The files of one case in one dtype; paths relative to the manifest. An error case has no expected file.

    published: answers of a `Published`, under our names and in our layout.
    """

    inputs: str
    expected: str | None = None
    sha256: dict[str, str] = {}
    published: str | None = None


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """One question to a port, and how its answer is judged.

    id: permanent, path-like. want: the outputs judged; empty = all that the expected file holds.
    features: what a port must claim before it is asked. flags: names of notes. note: what this very case shows.
    error: the code that must come instead of a result. steps: for a cache script, the code of each step.
    exact: outputs that must be equal bit for bit; all others are held to the derived bound.
    flops, bytes: multiply-adds counted as two, and bytes of inputs and outputs, of one evaluation in f32.
    native_rtol: the plain tolerance of the native walkers, where 1e-4 does not fit.
    published: somebody else's answers to the same question, by which it is judged a second time.
    """

    id: str
    op: str
    config: dict[str, Any]
    files: dict[str, Files]
    want: list[str] = []
    features: list[str] = []
    flags: list[str] = []
    note: str = ""
    error: str | None = None
    steps: list[str] | None = None
    exact: list[str] = []
    shapes: dict[str, list[int]] = {}
    flops: int = 0
    bytes: int = 0
    native_rtol: float | None = None
    published: Published | None = None


class Suite(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder of cases: `manifest.json` and the files that it names.

    left_out: what its source has beside them that cannot be asked yet, and why.
    """

    suite: str
    version: int
    cases: list[Case]
    notes: dict[str, Note] = {}
    left_out: dict[str, str] = {}


def read_suite(folder: Path) -> Suite:
    """The manifest of the folder. Raises FileNotFoundError, msgspec.ValidationError."""
    return msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Suite)


def encode_suite(suite: Suite) -> bytes:
    """The manifest as text, stable from run to run."""
    return msgspec.json.format(msgspec.json.encode(suite, order="deterministic"), indent=1) + b"\n"
