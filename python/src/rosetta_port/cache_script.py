"""The op `kv_cache`: a script of steps, replayed on fresh caches at every evaluation."""

from pathlib import Path
from typing import Any

import numpy as np

from .cache_kinds import Kind, cache_kind, cache_maker, check_steps
from .cache_steps import DTYPE_NAMES, STEPS, Script
from .call import Call
from .errors import InvalidConfig, InvalidRequest
from .library import Library
from .read import integer
from .tensors import Tensors

CHANGELESS = ("attend", "read", "stats")
Replayed = tuple[list[str], dict[str, Any]]


def prepare_cache(
    library: Library,
    request: dict[str, Any],
    config: dict[str, Any],
    tensors: Tensors,
    want: list[str] | None,
) -> Call:
    """Refuses at once what the whole script cannot do; a step that fails later only gets its code.

    Relative paths of steps are taken from the folder of the request's `outputs`, if any. Steps that are `untimed` in a
    bench are replayed here, once.
    """
    kind = cache_kind(library, config)
    steps = check_steps(library, kind, config)
    _check_want(want, kind, steps)
    make = cache_maker(library, kind, config)
    dtype = _cache_dtype(kind, steps, tensors)
    outputs = request.get("outputs")
    folder = Path(outputs).parent if isinstance(outputs, str) else None
    empty = make(dtype)  # a bad configuration is an error of the request, not of a step
    rung = library.cache_variants.get(str(request.get("variant")))
    if rung is not None:
        rung.check(empty)
    first = _untimed(config, steps) if request.get("cmd") == "bench" else 0

    def begin() -> Script:
        return Script(library, kind, make, tensors, dtype, folder, rung)

    if first:
        script = begin()
        before = _replay(script, steps[:first])

        def evaluate() -> Replayed:
            codes, written = _replay(script, steps[first:])
            return before[0] + codes, before[1] | written
    else:

        def evaluate() -> Replayed:
            return _replay(begin(), steps)

    return Call(
        evaluate,
        outputs=lambda result: {
            name: library.to_numpy(x) for name, x in result[1].items() if want is None or name in want
        },
        steps=lambda result: result[0],
    )


def _replay(script: Script, steps: list[dict[str, Any]]) -> Replayed:
    """The code of each step, and all that the ok steps wrote."""
    codes: list[str] = []
    written: dict[str, Any] = {}
    for step in steps:
        try:
            written |= STEPS[step["do"]](script, step)
            codes.append("ok")
        except Exception as error:
            if hasattr(error, "feature") or not hasattr(error, "code"):
                raise
            codes.append(error.code)
    return codes, written


def _untimed(config: dict[str, Any], steps: list[dict[str, Any]]) -> int:
    """How many of the first steps are in no time. The others are done again and again on what those have left."""
    if config.get("untimed") is None:
        return 0
    count = integer("untimed", config["untimed"])
    if not 0 <= count <= len(steps):
        raise InvalidConfig(f"untimed: expected 0 to {len(steps)}, the number of steps, got {count}")
    for step in steps[count:]:
        if count and step["do"] not in CHANGELESS:
            raise InvalidConfig(
                f"untimed: expected only {', '.join(CHANGELESS)} after {count} steps, got {step['do']}"
            )
    return count


def _check_want(want: list[str] | None, kind: Kind, steps: list[dict[str, Any]]) -> None:
    """Every wanted name is one that some step writes."""
    codes = [f"{name}_{part}" for name in ("k", "v") for part in ("codes", "scale", "zero")]
    parts = {
        "read": [*kind.contents, "lengths", "positions", "tracked", *codes, "k_tail"],
        "stats": ["positions", "bytes", "pages"],
    }
    offered = [step.get(field) for step in steps if step["do"].endswith("attend") for field in ("out", "lse")]
    offered += [f"{step.get('out')}.{part}" for step in steps for part in parts.get(step["do"], [])]
    for name in want or ():
        if name not in offered:
            raise InvalidRequest(f"want: expected what a step writes, got {name}")


def _cache_dtype(kind: Kind, steps: list[dict[str, Any]], tensors: Tensors) -> str:
    """Of the first append's keys; without one, of the first float tensor by name; else f32."""
    keys = [step.get(kind.contents[0]) for step in steps if step["do"].startswith("append")][:1]
    for name in [*keys, *sorted(tensors)]:
        tensor = tensors.get(name) if isinstance(name, str) else None
        if isinstance(tensor, np.ndarray) and tensor.dtype in DTYPE_NAMES:
            return DTYPE_NAMES[tensor.dtype]
    return "f32"
