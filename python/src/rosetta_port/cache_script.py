"""The op `kv_cache`: a script of steps, replayed on fresh caches at every evaluation."""

from pathlib import Path
from typing import Any

import numpy as np

from .cache_kinds import Kind, cache_kind, cache_maker, check_steps
from .cache_steps import DTYPE_NAMES, STEPS, Script
from .call import Call
from .errors import InvalidRequest
from .library import Library
from .tensors import Tensors


def prepare_cache(
    library: Library, config: dict[str, Any], tensors: Tensors, want: list[str] | None, outputs: Any
) -> Call:
    """Refuses at once what the whole script cannot do; a step that fails later only gets its code.

    outputs: the path that the request writes to, if any; relative paths of steps are taken from its folder.
    """
    kind = cache_kind(library, config)
    steps = check_steps(library, kind, config)
    _check_want(want, kind, steps)
    make = cache_maker(library, kind, config)
    dtype = _cache_dtype(kind, steps, tensors)
    folder = Path(outputs).parent if isinstance(outputs, str) else None
    make(dtype)  # a bad configuration is an error of the request, not of a step

    def evaluate() -> tuple[list[str], dict[str, Any]]:
        """The code of each step, and all that the ok steps wrote."""
        script = Script(library, kind, make, tensors, dtype, folder)
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

    return Call(
        evaluate,
        outputs=lambda result: {
            name: library.to_numpy(x) for name, x in result[1].items() if want is None or name in want
        },
        steps=lambda result: result[0],
    )


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
