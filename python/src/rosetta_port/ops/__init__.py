"""From a request to a library call. One table an op; its functions are in files by group."""

from typing import Any

from ..ask import Ask, Plan
from ..cache_script import prepare_cache
from ..call import Call
from ..errors import InvalidRequest, Unsupported
from ..library import Library
from ..tensors import Arrays, Tensors
from . import attention, blocks, elementwise, latent, linear, other, positions, sparse

OPS = {
    **attention.OPS,
    **positions.OPS,
    **elementwise.OPS,
    **other.OPS,
    **linear.OPS,
    **sparse.OPS,
    **latent.OPS,
    **blocks.OPS,
}


def prepare(library: Library, request: dict[str, Any], tensors: Tensors) -> Call:
    """The call that a `run` or `bench` asks for. Raises InvalidRequest, Unsupported, the library's errors."""
    op, config, want = _text(request, "op"), request.get("config"), request.get("want")
    claims = library.ops()
    if op not in claims:
        raise Unsupported(f"op.{op}")
    variants = claims[op]["variants"]
    variant = variants[0] if request.get("variant") is None else _text(request, "variant")
    if variant not in variants:
        raise Unsupported(f"variant.{variant}")
    config = {} if config is None else config
    if not isinstance(config, dict):
        raise InvalidRequest(f"config: expected an object, got {config}")
    if want is not None and (not isinstance(want, list) or not all(isinstance(x, str) for x in want)):
        raise InvalidRequest(f"want: expected a list of names, got {want}")
    if op == "kv_cache":
        return prepare_cache(library, request, config, tensors, want)
    want = ["output"] if want is None else want
    unknown = sorted(set(want) - set(OPS[op].outputs))
    if unknown:
        raise InvalidRequest(f"want: expected some of {OPS[op].outputs}, got {unknown}")
    return _call(library, OPS[op].plan(Ask(library, variant, config, tensors)), want)


def _call(library: Library, plan: Plan, want: list[str]) -> Call:
    """The plain library call where only the output is wanted, else the one that gives its steps by name."""
    for name in want:
        if name not in plan.names:
            raise Unsupported(f"want.{name}")
    if want == ["output"] and plan.output is not None:
        return Call(plan.output, lambda result: {"output": library.to_numpy(result)})

    def outputs(result: Any) -> Arrays:
        named = dict(zip(plan.names, result, strict=False))
        for name in want:
            if named.get(name) is None:  # a rung may give less than its kind does
                raise Unsupported(f"want.{name}")
        return {name: library.to_numpy(named[name]) for name in want}

    return Call(plan.everything, outputs)


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: expected a name, got {value}")
    return value
