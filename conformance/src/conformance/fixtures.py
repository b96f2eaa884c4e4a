"""From drafts to files, and back: writes the suites, proves that what is committed is what the code makes, loads them.

Committed under `conformance/fixtures/SUITE`: the manifest, and the files of every case that is small. The rest is made
into `conformance/.cache/fixtures/SUITE` when it is missing. What is stored is the authority: inputs must come out the
same bit for bit, answers within the rounding of float64, since exp and log differ in the last bit between machines.
"""

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from . import cases, onnx_suite
from .bounds import derive
from .bounds.eviction import find_undecided
from .case import Case, Files, Suite, encode_suite, read_suite
from .cases.draft import Draft
from .features import cost, features
from .flags import NOTES
from .handmade import load_handmade
from .realise import realise, write_case
from .repository import ROOT
from .tensors import HALF_FORMATS, HALVES, Tensors, is_float, read_tensors

COMMITTED = ROOT / "conformance" / "fixtures"
CACHE = ROOT / "conformance" / ".cache" / "fixtures"
VERSION = 1
COMMIT_LIMIT = 24 * 1024  # bytes of inputs and answers of one case in one dtype
Report = Callable[[str], None]


class FixtureError(Exception):
    """Files that are missing, damaged, or not what the code makes."""


@dataclass(frozen=True)
class LoadedSuite:
    """A suite and where its files lie: beside the manifest, or in the cache."""

    suite: Suite
    folder: Path
    cache: Path | None = None

    def path(self, relative: str) -> Path:
        """Where a file of the manifest lies."""
        committed = self.folder / relative
        return committed if committed.exists() or self.cache is None else self.cache / relative

    def inputs(self, case: Case, dtype: str) -> Tensors:
        """What the port is given."""
        return read_tensors(self.path(case.files[dtype].inputs))

    def expected(self, case: Case, dtype: str) -> Tensors | None:
        """The answers, which no port ever sees."""
        name = case.files[dtype].expected
        return None if name is None else read_tensors(self.path(name))

    def published(self, case: Case, dtype: str) -> Tensors | None:
        """The answers that somebody else has published, where there are any."""
        name = case.files[dtype].published
        return None if name is None else read_tensors(self.path(name))

    def narrow(self, ops: Sequence[str] | None) -> "LoadedSuite":
        """The same with the cases of these ops only; None means all."""
        chosen = [case for case in self.suite.cases if ops is None or case.op in ops]
        return replace(self, suite=msgspec.structs.replace(self.suite, cases=chosen))


def load_suites(ops: Sequence[str] | None = None, *, include_bench: bool = False) -> list[LoadedSuite]:
    """The suites of the project, narrowed to these ops. Makes the files of the cache that are missing."""
    known = {case.op for name in cases.SUITES for case in load_suite(name).suite.cases}
    unknown = set(ops or ()) - known
    if unknown:
        raise FixtureError(f"ops: expected some of {sorted(known)}, got {sorted(unknown)}")
    loaded = []
    for name in cases.SUITES:
        if name == "bench" and not include_bench:
            continue
        loaded.append(load_suite(name).narrow(ops))
    for suite in loaded:
        fill_cache(suite)
    # Made from installed packages, and only when something is asked of them. They build on this module.
    if ops is None or "mha" in ops:
        from .minilm.suite import ensure_suite

        loaded.append(load_folder(ensure_suite(CACHE / "minilm")).narrow(ops))
    if ops is None or set(onnx_suite.OPS) & set(ops):
        from .onnx_suite.suite import ensure_suite as ensure_onnx_suite

        loaded.append(load_folder(ensure_onnx_suite(CACHE / "onnx")).narrow(ops))
    return [suite for suite in loaded if suite.suite.cases]


def load_suite(name: str) -> LoadedSuite:
    """One suite of the project, whole. Raises FixtureError."""
    folder = COMMITTED / name
    if not (folder / "manifest.json").exists():
        raise FixtureError(f"no manifest for the suite {name}: run `conformance fixtures --write`")
    return LoadedSuite(read_suite(folder), folder, CACHE / name)


def load_folder(folder: Path) -> LoadedSuite:
    """Somebody else's suite: a manifest.json as ours, or files NAME.case.json written by hand.

    Raises FixtureError, HandmadeError for a file that cannot be read, is missing, or is not the one that was meant.
    """
    if not (folder / "manifest.json").exists():
        return LoadedSuite(*load_handmade(folder, CACHE / "handmade"))
    try:
        suite = LoadedSuite(read_suite(folder), folder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FixtureError(f"{folder / 'manifest.json'}: {error}") from None
    for case in suite.suite.cases:
        for files in case.files.values():
            for kind, name in (("inputs", files.inputs), ("expected", files.expected)):
                _check_file(suite, case, name, files.sha256.get(kind))
    return suite


def _check_file(suite: LoadedSuite, case: Case, name: str | None, sha256: str | None) -> None:
    """Raises FixtureError when a file that the manifest names is missing or, where it gives a sum, another one."""
    if name is None:
        return
    path = suite.path(name)
    if not path.is_file():
        raise FixtureError(f"{case.id}: {path}: the manifest names a file that is not there")
    if sha256 is not None and hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise FixtureError(f"{case.id}: {path}: not the file whose sum the manifest gives")


def fill_cache(suite: LoadedSuite) -> int:
    """Makes the files of cases that are not committed and not there, or from another version of the code."""
    if suite.cache is None:
        return 0
    missing = {case.id for case in suite.suite.cases if not _present(suite, case)}
    if not missing:
        return 0
    for draft in cases.drafts(suite.suite.suite):
        if draft.id in missing:
            for dtype in draft.dtypes:
                inputs, expected = realise(draft, dtype)
                write_case(suite.cache, draft, dtype, inputs, expected)
    absent = [case.id for case in suite.suite.cases if not _present(suite, case)]
    if absent:
        raise FixtureError(f"the code does not make the inputs that the manifest promises for {absent[:5]}")
    return len(missing)


def _present(suite: LoadedSuite, case: Case) -> bool:
    """All files are there, and a generated one holds the inputs that the manifest names by their sum."""
    for files in case.files.values():
        inputs = suite.path(files.inputs)
        if not inputs.exists() or (files.expected and not suite.path(files.expected).exists()):
            return False
        if (
            inputs.is_relative_to(CACHE)
            and hashlib.sha256(inputs.read_bytes()).hexdigest() != files.sha256["inputs"]
        ):
            return False
    return True


def write_suites(report: Report, names: Sequence[str]) -> None:
    """Writes manifests and committed files of these suites anew, for the author of a case."""
    for name in names:
        folder = COMMITTED / name
        old = set(folder.rglob("*.safetensors"))
        written, kept = [], set()
        for draft in cases.drafts(name):
            files = {}
            for dtype in draft.dtypes:
                inputs, expected = realise(draft, dtype)
                _check_decided(draft, dtype, inputs)
                small = name != "bench" and _size(inputs, expected) <= COMMIT_LIMIT
                target = folder if small else CACHE / name
                files[dtype] = write_case(target, draft, dtype, inputs, expected, keep_expected=small)
                kept |= {target / path for path in (files[dtype].inputs, files[dtype].expected) if path}
            written.append(describe(draft, files))
        for stale in old - kept:
            stale.unlink()
        used = {flag for case in written for flag in case.flags}
        suite = Suite(name, VERSION, written, {flag: NOTES[flag] for flag in sorted(used)})
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_bytes(encode_suite(suite))
        report(f"{name}: {len(written)} cases written")


def check_suites(report: Report, names: Sequence[str]) -> None:
    """Raises FixtureError unless the code makes exactly the committed cases, inputs and (within float64) answers."""
    for name in names:
        suite = load_suite(name)
        stored = {case.id: case for case in suite.suite.cases}
        drafts = {draft.id: draft for draft in cases.drafts(name)}
        if list(stored) != list(drafts):
            raise FixtureError(
                f"{name}: manifest and code differ in {sorted(set(stored) ^ set(drafts)) or 'their order'}"
            )
        with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
            shares = [_check_case(suite, stored[id_], draft, Path(scratch)) for id_, draft in drafts.items()]
        worst = max(shares, default=0.0)
        report(
            f"{name}: {len(drafts)} cases are what the code makes; answers use {worst:.1%} of the float64 bound"
        )


def _check_case(suite: LoadedSuite, case: Case, draft: Draft, scratch: Path) -> float:
    """The largest share of the float64 bound between the stored answers and those made now."""
    if case != describe(draft, case.files):
        raise FixtureError(f"{case.id}: the manifest describes another case than the code")
    worst = 0.0
    for dtype, files in case.files.items():
        inputs, expected = realise(draft, dtype)
        _check_decided(draft, dtype, inputs)
        made = write_case(scratch, draft, dtype, inputs, None)
        if made.sha256["inputs"] != files.sha256["inputs"]:
            raise FixtureError(f"{case.id}: {dtype}: the code makes other inputs than the manifest's sum")
        committed = suite.folder / files.inputs
        for kind, relative in (("inputs", files.inputs), ("expected", files.expected)):
            path = suite.folder / relative if relative else None
            if path and path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() != files.sha256[kind]:
                raise FixtureError(f"{case.id}: {dtype}: {path.name} is not the file that the manifest names")
        if expected is not None and committed.exists():
            worst = max(
                worst, _distance(draft, inputs, expected, read_tensors(suite.folder / str(files.expected)))
            )
            if worst > 1:
                raise FixtureError(f"{case.id}: {dtype}: the stored answers are not those of the oracle")
    return worst


def _check_decided(draft: Draft, dtype: str, inputs: Tensors) -> None:
    """Raises FixtureError for a cache script whose policies may keep other slots in a correct port."""
    if draft.op == "kv_cache" and draft.error is None:
        undecided = find_undecided(draft.config, inputs, draft.steps, dtype)
        if undecided:
            raise FixtureError(f"{draft.id}: {dtype}: what step {undecided[0]} keeps hangs on a rounding")


def _distance(draft: Draft, inputs: Tensors, made: Tensors, stored: Tensors) -> float:
    """Share of the float64 bound; infinite when names, shapes or special values differ."""
    if sorted(made) != sorted(stored):
        return np.inf
    bounds = derive(draft.op, draft.config, inputs, "f64", draft.steps)
    worst = 0.0
    for name, x in made.items():
        y = stored[name]
        if x.shape != y.shape or not np.array_equal(np.isfinite(x), np.isfinite(y)):
            return np.inf
        finite = np.isfinite(x)
        error = np.abs(x[finite].astype(np.float64) - y[finite])
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = np.broadcast_to(bounds.get(name, 0), x.shape)[finite]  # what has no bound is exact
            shares = np.where(error == 0, 0, error / bound)
        worst = max(worst, float(shares.max(initial=0)))
    return worst


def describe(
    draft: Draft, files: dict[str, Files], made: tuple[Tensors, Tensors | None] | None = None
) -> Case:
    """The manifest's entry of a draft. made: its inputs and answers, of a case that no native suite will read."""
    inputs, expected = made or realise(draft, draft.dtypes[0], answers=draft.error is None)
    flops, moved = (0, 0) if expected is None else cost(draft.op, draft.config, inputs, expected, draft.steps)
    return Case(
        id=draft.id,
        op=draft.op,
        config=draft.config,
        files=files,
        want=list(draft.want) if draft.error is None else [],
        features=features(draft.op, draft.config, inputs, draft.want if draft.error is None else ()),
        flags=list(draft.flags),
        note=draft.note,
        error=draft.error,
        steps=None if draft.steps is None else list(draft.steps),
        exact=list(draft.exact),
        shapes={name: list(x.shape) for name, x in inputs.items()},
        flops=flops,
        bytes=moved,
        native_rtol=None if made else _native_rtol(draft, inputs, expected),
    )


def _native_rtol(draft: Draft, inputs: Tensors, expected: Tensors | None) -> float | None:
    """The native walkers compare with |got - want| <= rtol (1 + max |want|); 1e-4 unless the bound itself is wider."""
    if expected is None:
        return None
    bounds = derive(draft.op, draft.config, inputs, "f32", draft.steps)
    needed = 0.0
    for name, x in expected.items():
        if not is_float(x):
            continue
        finite = np.isfinite(x)
        size = 1 + float(np.abs(x[finite].astype(np.float64)).max(initial=0))
        needed = max(needed, float(np.broadcast_to(bounds[name], x.shape)[finite].max(initial=0)) / size)
    needed += max((HALF_FORMATS[dtype].eps for dtype in draft.dtypes if dtype in HALVES), default=0)
    return None if needed <= 1e-4 else float(f"{needed:.0e}")


def _size(inputs: Tensors, expected: Tensors | None) -> int:
    return sum(x.nbytes for x in (*inputs.values(), *(expected or {}).values()))
