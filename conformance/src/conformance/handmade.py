"""Cases that somebody wrote by hand: files NAME.case.json in a folder, tensors as nested lists.

    {"id": "mine/first", "op": "sdpa", "config": {"scale": 1}, "inputs": {"q": [[[[1]]]], …}, "expected": {"output": …}}

A list of numbers is a float tensor of the case's dtype, a list of true and false is BOOL; "nan", "inf" and "-inf" stand
for themselves. {"dtype": "I64", "data": [3, 4]} names another type, {"shape": [0, 3], "data": []} an empty tensor.
`dtypes` is ["f32"] unless given. Without `expected` (and without `error`) the oracle answers.
"""

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .case import Case, Files, Suite
from .cases.draft import Draft
from .features import features
from .realise import realise
from .tensors import Dtype, Tensors, write_tensors

ID = re.compile(r"[\w-]+(/[\w-]+)*")  # it names files too


class Handmade(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file. `expected`: outputs by name, judged by the derived bound all the same."""

    id: str
    op: str
    inputs: dict[str, Any]
    config: dict[str, Any] = {}
    expected: dict[str, Any] | None = None
    want: list[str] = []
    error: str | None = None
    steps: list[str] | None = None
    exact: list[str] = []
    flags: list[str] = []
    note: str = ""
    dtypes: list[Dtype] = msgspec.field(default_factory=lambda: ["f32"])


class HandmadeError(Exception):
    """A case file that cannot be read; the message names it."""


def load_handmade(folder: Path, scratch: Path) -> tuple[Suite, Path]:
    """A suite of all *.case.json in the folder; its files are written below `scratch`. Raises HandmadeError."""
    paths = sorted(folder.glob("*.case.json"))
    if not paths:
        raise HandmadeError(f"{folder}: expected a manifest.json or files *.case.json, got neither")
    target = scratch / folder.resolve().name
    cases: list[Case] = []
    for path in paths:
        try:
            case = _load(msgspec.json.decode(path.read_bytes(), type=Handmade), target)
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
            raise HandmadeError(f"{path}: {error}") from error
        if any(case.id == other.id for other in cases):
            raise HandmadeError(f"{path}: id: expected one of its own, got {case.id} a second time")
        cases.append(case)
    return Suite(folder.resolve().name, 1, cases), target


def _load(handmade: Handmade, target: Path) -> Case:
    if not ID.fullmatch(handmade.id):
        raise ValueError(f"id: expected words of letters, digits, - and _ joined by /, got {handmade.id!r}")
    inputs = {name: _array(x) for name, x in handmade.inputs.items()}
    want = tuple(handmade.want or handmade.expected or (() if handmade.op == "kv_cache" else ("output",)))
    draft = Draft(
        handmade.id,
        handmade.op,
        inputs,
        handmade.config,
        want,
        error=handmade.error,
        dtypes=tuple(handmade.dtypes),
        steps=None if handmade.steps is None else tuple(handmade.steps),
    )
    files = {}
    for dtype in draft.dtypes:
        arrays, expected = realise(draft, dtype, answers=handmade.expected is None)
        if handmade.expected is not None and handmade.error is None:
            expected = {name: _array(x) for name, x in handmade.expected.items()}
        files[dtype] = _write(target, handmade.id, dtype, arrays, expected)
    return Case(
        id=handmade.id,
        op=handmade.op,
        config=handmade.config,
        files=files,
        want=list(want) if not handmade.error else [],
        features=features(draft.op, draft.config, inputs, () if handmade.error else want),
        flags=handmade.flags,
        note=handmade.note,
        error=handmade.error,
        steps=handmade.steps,
        exact=handmade.exact,
        shapes={name: list(x.shape) for name, x in inputs.items()},
    )


def _write(target: Path, name: str, dtype: str, inputs: Tensors, expected: Tensors | None) -> Files:
    stem = f"{name}.{dtype}"
    write_tensors(target / f"{stem}.in.safetensors", inputs)
    if expected is None:
        return Files(f"{stem}.in.safetensors")
    write_tensors(target / f"{stem}.out.safetensors", expected)
    return Files(f"{stem}.in.safetensors", f"{stem}.out.safetensors")


def _array(x: Any) -> np.ndarray:
    """float64 unless it says otherwise; the case's dtype comes later."""
    if isinstance(x, dict):
        kinds = {"I64": np.int64, "I32": np.int32, "BOOL": np.bool_, "F32": np.float32, "F64": np.float64}
        data: np.ndarray = np.array(_numbers(x["data"]), kinds[x.get("dtype", "F64")])
        return data.reshape(x.get("shape", data.shape))
    array = np.array(_numbers(x))
    return array if array.dtype == np.bool_ else array.astype(np.float64)


def _numbers(x: Any) -> Any:
    if isinstance(x, list):
        return [_numbers(y) for y in x]
    return float(x) if isinstance(x, str) else x
