"""The op `kv_cache`: a script of steps, replayed on a fresh cache at every evaluation."""

from typing import Any

import numpy as np

from .call import Call
from .config import step_options
from .errors import InvalidConfig, InvalidRequest, Unsupported
from .library import Library
from .read import integer_or_none, whole
from .tensors import DTYPES, Tensors, require

DTYPE_NAMES = {DTYPES[name.upper()]: name for name in ("f32", "f64", "f16", "bf16")}


def prepare_cache(library: Library, config: dict[str, Any], tensors: Tensors, want: list[str] | None) -> Call:
    """Refuses at once what the whole script cannot do; a step that fails later only gets its code."""
    if config.get("kind") not in (None, "contiguous"):
        raise Unsupported(f"kind.{config['kind']}")
    if config.get("rope") is not None:
        raise Unsupported("rope")
    steps = _steps(config)
    _check_want(want, steps)
    arguments = {
        "batch": _size(config, "batch"),
        "num_kv_heads": _size(config, "num_kv_heads"),
        "head_dim": _size(config, "head_dim"),
        "value_dim": integer_or_none(config, "value_dim"),
        "capacity": integer_or_none(config, "capacity"),
        "dtype": library.cache_dtypes[_cache_dtype(steps, tensors)],
    }
    library.api.KVCache(**arguments)  # a bad configuration is an error of the request, not of a step

    def evaluate() -> tuple[list[str], dict[str, Any]]:
        """The code of each step, and all that the ok steps wrote."""
        cache = library.api.KVCache(**arguments)
        codes: list[str] = []
        written: dict[str, Any] = {}
        for step in steps:
            try:
                written |= STEPS[step["do"]](library, cache, step, tensors)
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


def _append(library: Library, cache: Any, step: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    k, v = (library.convert(require(tensors, _name(step, field))) for field in ("k", "v"))
    lengths = None if step.get("lengths") is None else require(tensors, _name(step, "lengths"))
    cache.append(k, v, library.convert(lengths))
    return {}


def _attend(library: Library, cache: Any, step: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    q, out = library.convert(require(tensors, _name(step, "q"))), _name(step, "out")
    options = step_options(library, step, tensors)
    if step.get("lse") is None:
        return {out: cache.attend(q, **options)}
    lse = _name(step, "lse")
    steps = cache.attend_steps(q, **options)
    return {out: steps.output, lse: steps.lse}


def _truncate(library: Library, cache: Any, step: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    lengths = step.get("lengths")
    if not isinstance(lengths, list) or any(whole(n) is None for n in lengths):
        raise InvalidConfig(f"truncate: lengths: expected a list of integers, got {lengths}")
    cache.truncate([whole(n) for n in lengths])
    return {}


def _reset(library: Library, cache: Any, step: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    cache.reset()
    return {}


def _read(library: Library, cache: Any, step: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    out = _name(step, "out")
    k, v, lengths = cache.read()
    return {f"{out}.k": k, f"{out}.v": v, f"{out}.lengths": lengths}


STEPS = {"append": _append, "attend": _attend, "truncate": _truncate, "reset": _reset, "read": _read}


def _steps(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of the script, each one that this port knows."""
    steps = config.get("steps")
    if not isinstance(steps, list):
        raise InvalidRequest(f"config: expected steps, a list of objects, got {steps}")
    for step in steps:
        if not isinstance(step, dict) or not isinstance(step.get("do"), str):
            raise InvalidRequest(f"steps: expected an object with `do`, got {step}")
        if step["do"] not in STEPS:
            raise Unsupported(f"step.{step['do']}")
        if step.get("cache") not in (None, "main"):
            raise Unsupported("step.cache")
    return steps


def _check_want(want: list[str] | None, steps: list[dict[str, Any]]) -> None:
    """Every wanted name is one that some step writes."""
    offered = [step.get(field) for step in steps if step["do"] == "attend" for field in ("out", "lse")]
    reads = [step.get("out") for step in steps if step["do"] == "read"]
    offered += [f"{out}.{part}" for out in reads for part in ("k", "v", "lengths")]
    for name in want or ():
        if name not in offered:
            raise InvalidRequest(f"want: expected what a step writes, got {name}")


def _size(config: dict[str, Any], name: str) -> int:
    """An integer that the config must have."""
    size = integer_or_none(config, name)
    if size is None:
        raise InvalidRequest(f"config: expected {name}, got none")
    return size


def _name(step: dict[str, Any], field: str) -> str:
    """The name of a tensor that a step must have."""
    name = step.get(field)
    if not isinstance(name, str):
        raise InvalidRequest(f"{step['do']}: {field}: expected the name of a tensor, got {name}")
    return name


def _cache_dtype(steps: list[dict[str, Any]], tensors: Tensors) -> str:
    """Of the first append's keys; without one, of the first float tensor by name; else f32."""
    keys = [step.get("k") for step in steps if step["do"] == "append"][:1]
    for name in [*keys, *sorted(tensors)]:
        tensor = tensors.get(name) if isinstance(name, str) else None
        if isinstance(tensor, np.ndarray) and tensor.dtype in DTYPE_NAMES:
            return DTYPE_NAMES[tensor.dtype]
    return "f32"
